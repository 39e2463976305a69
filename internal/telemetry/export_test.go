package telemetry

// NewWarnings is newWarnings, for the tests.
var NewWarnings = newWarnings
