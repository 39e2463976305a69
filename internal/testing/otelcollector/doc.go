// Package otelcollector tests that the OpenTelemetry collector accepts what a worker exports. It is a separate module,
// because the collector's own code is too large to be a dependency of GEM itself.
package otelcollector
