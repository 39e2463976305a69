package handlers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"reflect"
	"strings"

	"github.com/gemworker/gem/internal/envvar"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
)

// Domain is a domain of tools that needs more than its methods: configuration, connections or tables. A domain without such
// needs is listed as the plain value whose methods are its tools. A function that returns a Domain should make a new one
// each time, since it is configured and opened in place.
type Domain struct {
	// Tools is the value whose exported methods are the tools. The name of its type is the domain's name.
	Tools any
	// Config, if set, points to a struct that [Configure] fills from the environment. A field states its variable in tags:
	// envconfig is its name, default its default, desc a sentence for `gem worker --help`, and may ends the sentence "it may
	// be …" of the error for a wrong value. A field can be of any type that github.com/kelseyhightower/envconfig reads; a
	// [Secret] is never shown, and a field without envconfig is left alone. A type with a method Decode(string) error parses
	// its own value. A struct with a method Wrong() map[string]string is asked which variables cannot be used, each with a
	// reason that may be empty. A struct with a method Lookup(func(variable string) string) is given, after its fields and
	// before Wrong, a function that returns the value of any variable, without the white space around it: for variables whose
	// names stand in a file of the domain's own. What may be secret in them becomes a [Secret] at once.
	Config any
	// Open, if set, is called once, after Config was filled and before the worker starts. In gem dev, the domain llm
	// is opened again when its routes file has changed.
	Open func(Env) error
	// Check, if set, is called each time that a worker starts, once Postgres is there. With an error the worker does not start.
	Check func(context.Context, DB) error
	// Tables, if set, holds the domain's tables: SQL files in its root, named NNNNN_name.sql and numbered from 1. `gem migrate`
	// applies each once, in a transaction, if the registry has a tool of the domain. Where rows of them leave by age, a function gem_<domain>.prune(before timestamptz, most integer) returns
	// integer removes so many of them at most and returns how many: `gem prune` calls it until there are no more.
	Tables fs.FS
	// Remote names the methods whose work a remote service does, such as SendEmail, or "*" for all. If the registry has no retry for
	// them, their calls are tried more often and for longer.
	Remote []string
	// Grants are the rights of the role gem_worker on the tables, one string per table, such as "select, insert on public.notes".
	Grants []string
}

// Env is what a process shares with its domains. All fields are set but Isolated.
type Env struct {
	// Pool holds the connections of running calls. It serves tools with effects outside, which have no Tx.
	Pool      *pgxpool.Pool
	Log       *zap.Logger
	Transport http.RoundTripper
	// Meter makes instruments for what a domain measures.
	Meter metric.Meter
	// Tables names the tables of all domains that have a tool in the registry, as their Grants name them.
	Tables []string
	// Isolated: nothing outside may be reached, and no file of the working directory be read, as in gem demo. Config has no values then but
	// those that the demo itself gives.
	Isolated bool
}

// Domains returns what a program lists, plain values and [Domain]s, as Domains.
func Domains(list ...any) []Domain {
	all := make([]Domain, len(list))
	for i, entry := range list {
		if d, ok := entry.(Domain); ok {
			all[i] = d
		} else {
			all[i] = Domain{Tools: entry}
		}
	}
	return all
}

// Name is the domain's name in lower case, such as leads.
func (d Domain) Name() string { return strings.ToLower(d.typeName()) }

func (d Domain) typeName() string {
	t := reflect.TypeOf(d.Tools)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Name()
}

// Configure fills the Config of each domain. lookup returns the value of a variable, as [os.Getenv] does. The error has a
// line for each variable with a wrong value.
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
func Open(env Env, domains ...any) error {
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
