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

// exporters reads the variables that the SDK leaves to the program; the SDK and its exporters read all others. The
// error has a line for each wrong variable.
func exporters() (traces, metrics string, err error) {
	var wrong []error
	exporter := func(signal string) string {
		chosen := none
		if endpointSet(signal) {
			chosen = otlp
		}
		variable, value := firstSet("OTEL_" + signal + "_EXPORTER")
		if chosen = cmp.Or(value, chosen); !slices.Contains([]string{otlp, console, none}, chosen) {
			wrong = append(wrong, fmt.Errorf("%s is %q: use otlp, console or none", variable, chosen))
		}
		variable, protocol := firstSet("OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
		if chosen == otlp && protocol != "" && protocol != "http/protobuf" {
			wrong = append(wrong, fmt.Errorf("%s is %q: use http/protobuf, which collectors usually accept on port 4318",
				variable, protocol))
		}
		return chosen
	}
	traces, metrics = exporter("TRACES"), exporter("METRICS")
	variable, disabled := firstSet("OTEL_SDK_DISABLED")
	switch {
	case disabled == "true" || traces == none && metrics == none:
		return none, none, nil
	case disabled != "" && disabled != "false":
		wrong = append(wrong, fmt.Errorf("%s is %q: use true or false", variable, disabled))
	}
	return traces, metrics, errors.Join(wrong...)
}

// firstSet returns the first of these variables that is set to more than white space, and its value in lower case.
func firstSet(variables ...string) (name, value string) {
	for _, name = range variables {
		if value = strings.ToLower(strings.TrimSpace(os.Getenv(name))); value != "" {
			break
		}
	}
	return name, value
}

func endpointSet(signal string) bool {
	_, endpoint := firstSet("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT")
	return endpoint != ""
}
