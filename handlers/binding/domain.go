package binding

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/envvar"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
)

// Domains converts the domains of a program, which are plain values and [handlers.Domain]s, into Domains.
func Domains(list ...any) []handlers.Domain {
	all := make([]handlers.Domain, len(list))
	for i, entry := range list {
		if d, ok := entry.(handlers.Domain); ok {
			all[i] = d
		} else {
			all[i] = handlers.Domain{Tools: entry}
		}
	}
	return all
}

// Configure fills the Config of each domain. lookup returns the value of a variable, as [os.Getenv] does. The error has
// a line for each variable with a wrong value.
func Configure(lookup func(variable string) string, domains ...any) error {
	var configs []any
	for _, d := range Domains(domains...) {
		if d.Config != nil {
			configs = append(configs, d.Config)
		}
	}
	return envvar.Read(lookup, configs...)
}

// Open opens the domains. Log, Transport and Meter have defaults: no log, [http.DefaultTransport], and no measurements.
func Open(env handlers.Env, domains ...any) error {
	if env.Log == nil {
		env.Log = zap.NewNop()
	}
	if env.Transport == nil {
		env.Transport = http.DefaultTransport
	}
	if env.Meter == nil {
		env.Meter = noop.Meter{}
	}
	all := Domains(domains...)
	for _, d := range all {
		for _, grant := range d.Grants {
			_, table, _ := strings.Cut(grant, " on ")
			env.Tables = append(env.Tables, table)
		}
	}
	var failed []error
	for _, d := range all {
		if d.Open != nil {
			if err := d.Open(env); err != nil {
				failed = append(failed, fmt.Errorf("open the domain %s: %w", d.Name(), err))
			}
		}
	}
	return errors.Join(failed...)
}
