package durable

// CancelledName returns the name of the event of a cancelled wait.
var CancelledName = cancelledName
