package telemetry

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// The exporters of a signal.
const (
	otlp    = "otlp"
	console = "console"
	none    = "none"
)

// environment says where the signals go. The SDK and its exporters read all other variables of OpenTelemetry themselves.
type environment struct{ traces, metrics string } // the names of exporters

// readEnvironment reads the variables that the SDK leaves to the program. It returns nil if nothing is to be sent. Its error
// has a line for each wrong variable.
func readEnvironment() (*environment, error) {
	var wrong []error
	exporter := func(signal string) string {
		fallback := none
		if endpointSet(signal) {
			fallback = otlp
		}
		variable := "OTEL_" + signal + "_EXPORTER"
		chosen := strings.ToLower(cmp.Or(value(variable), fallback))
		if !slices.Contains([]string{otlp, console, none}, chosen) {
			wrong = append(wrong, fmt.Errorf("%s is %q: use otlp, console or none", variable, chosen))
		}
		variable = "OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL"
		if value(variable) == "" {
			variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
		}
		const builtIn = "http/protobuf"
		if protocol := cmp.Or(value(variable), builtIn); chosen == otlp && !strings.EqualFold(protocol, builtIn) {
			wrong = append(wrong, fmt.Errorf("%s is %q: use http/protobuf, which collectors usually accept on port 4318", variable, protocol))
		}
		return chosen
	}
	e := &environment{traces: exporter("TRACES"), metrics: exporter("METRICS")}
	disabled := strings.ToLower(value("OTEL_SDK_DISABLED"))
	if disabled == "true" || e.traces == none && e.metrics == none {
		return nil, nil
	}
	if disabled != "" && disabled != "false" {
		wrong = append(wrong, fmt.Errorf("OTEL_SDK_DISABLED is %q: use true or false", disabled))
	}
	return e, errors.Join(wrong...)
}

// value returns a variable's value without surrounding white space.
func value(variable string) string { return strings.TrimSpace(os.Getenv(variable)) }

func endpointSet(signal string) bool {
	return value("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || value("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}
