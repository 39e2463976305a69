package testdb

// PoolWithin is Pool, with how long the connections may take to come back after the test.
var PoolWithin = poolWithin
