package testdb

// PoolWithin is Pool with a limit for the time until the connections are returned after the test.
var PoolWithin = poolWithin
