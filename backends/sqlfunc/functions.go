// Package sqlfunc is the backend of tools that are SQL functions: shop.refund is tools.shop_refund(input jsonb) returns
// jsonb. A function with a second argument, call jsonb, gets its call, too. It runs in the transaction of the
// call's receipt, with the rights of the worker's role.
package sqlfunc

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
)

// File is the File of the handlers.
const File = "SQL"

const (
	// knownFor is the maximum age of the knowledge about a function that a call is about to run.
	knownFor = 30 * time.Second
	// missedFor is the same for a tool without a usable function, because somebody may be writing it.
	missedFor = 100 * time.Millisecond
	// lookTimeout limits how long a call waits for a look at the catalog.
	lookTimeout = 3 * time.Second
)

// Functions finds the functions of the schema tools. It is safe for concurrent use, and has nothing to close.
type Functions struct {
	db  handlers.DB
	log *zap.Logger

	mu     sync.Mutex // held during a look, since its waiters want the result
	looked time.Time
	byName map[string]function
	told   map[string]string // the last fault of a function that was logged
}

// New returns the backend, which has not looked yet. It reads the catalog with db, which should not be the pool of
// running calls, because a call would then wait until another ends. log may be nil.
func New(db handlers.DB, log *zap.Logger) *Functions {
	if log == nil {
		log = zap.NewNop()
	}
	return &Functions{db: db, log: log, told: map[string]string{}}
}

// nameOf returns the name of a tool's function.
func nameOf(tool string) string { return strings.ReplaceAll(tool, ".", "_") }

// For returns the handler of a tool that is a function. If the function cannot be a tool, the handler's Func has the
// reason, and its calls end as not_configured. For notices a function that was created, changed or dropped at once or
// within 30 s. While the database does not answer, it uses the last known state.
func (f *Functions) For(tool string) (*binding.Handler, bool) {
	name := nameOf(tool)
	f.mu.Lock()
	defer f.mu.Unlock()
	age := time.Since(f.looked)
	if found, ok := f.byName[name]; age >= knownFor || (!ok || found.fault != "") && age >= missedFor {
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		defer cancel()
		if err := f.look(ctx); err != nil {
			f.log.Warn("cannot look for tools in SQL; what was known holds", zap.Error(err))
		}
	}
	found, ok := f.byName[name]
	if !ok {
		return nil, false
	}
	if f.told[name] != found.fault {
		f.told[name] = found.fault
		if found.fault != "" {
			f.log.Warn("the SQL function of a tool cannot be used: its calls end as not_configured", zap.String("tool", tool),
				zap.String("function", found.signature), zap.String("fault", found.fault), zap.String("to_do", found.remedy))
		}
	}
	return f.handler(tool, found), true
}

// Fault returns why a function with the name of a tool cannot be the tool, and the solution. It
// returns "" for a tool without a function.
func (f *Functions) Fault(tool string) string {
	if f == nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	found := f.byName[nameOf(tool)]
	if found.fault == "" {
		return ""
	}
	return found.signature + " cannot be the tool: " + found.fault + ". " + found.remedy
}

// Look reads the catalog now.
func (f *Functions) Look(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.look(ctx)
}

// function is the result of judging the functions of one name.
type function struct {
	name      string
	signature string // such as tools.shop_refund(jsonb)
	call      bool   // it takes the call, too
	fault     string // why it cannot be a tool; empty if it can
	remedy    string // the solution
}

// routine is a row of pg_proc.
type routine struct {
	Name, Arguments, Result, Kind, Second string
	// its arguments are (jsonb) or (jsonb, jsonb); it returns jsonb; many of them
	Input, InputAndCall, Output, Set bool
	Executable                       bool
}

// routines reads the functions of the schema tools, if the schema belongs to the owner of GEM's tables: a role that may
// create functions there has the rights of a worker.
const routines = `
	select p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid),
		coalesce(pg_catalog.format_type(p.prorettype, null), ''), p.prokind::text, coalesce(p.proargnames[2], ''),
		p.pronargs = 1 and p.proargtypes[0] = 'jsonb'::regtype::oid,
		p.pronargs = 2 and p.proargtypes[0] = 'jsonb'::regtype::oid and p.proargtypes[1] = 'jsonb'::regtype::oid,
		p.prorettype = 'jsonb'::regtype::oid, p.proretset,
		pg_catalog.has_schema_privilege(n.oid, 'usage') and pg_catalog.has_function_privilege(p.oid, 'execute')
	from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'tools'
		join pg_catalog.pg_namespace g on g.nspname = 'gem' and g.nspowner = n.nspowner
	order by p.proname, p.oid`

// look reads the catalog. It must be called with the lock.
func (f *Functions) look(ctx context.Context) error {
	defer func() { f.looked = time.Now() }() // it does not query more often after a failure
	rows, err := f.db.Query(ctx, routines)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[routine])
	if err != nil {
		return err
	}
	byName := map[string]function{}
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Name == all[0].Name {
			n++
		}
		byName[all[0].Name], all = judge(all[:n]), all[n:]
	}
	f.byName = byName
	return nil
}

// judge selects the tool among the functions of one name: the only one with the right signature. Other functions of
// that name may be its helpers.
func judge(all []routine) (found function) {
	right, r := 0, all[0]
	for _, one := range all {
		if one.fault() == "" {
			right, r = right+1, one
		}
	}
	found = function{name: r.Name, signature: "tools." + r.Name + "(" + r.Arguments + ")", call: r.InputAndCall,
		fault: r.fault()}
	wanted := "tools." + r.Name + "(input jsonb) returns jsonb"
	switch {
	case right > 1:
		found.signature, found.fault = "tools."+r.Name,
			"there are two: one that takes the input, and one that takes the input and the call"
		found.remedy = "Drop one: drop function tools." + r.Name + "(jsonb)"
	case found.fault != "":
		found.remedy = "Create the function " + wanted + ", or with a second argument named call of type jsonb."
	case !r.Executable:
		found.fault = "the worker's role may not execute it"
		found.remedy = "As its owner: grant execute on function " + found.signature + " to gem_worker"
	}
	return found
}

// fault returns why a routine cannot be a tool, or "" if its signature allows it.
func (r routine) fault() string {
	switch {
	case r.Kind != "f":
		return cmp.Or(map[string]string{"p": "it is a procedure", "a": "it is an aggregate"}[r.Kind],
			"it is a window function")
	case r.Set:
		return "it returns a set of rows"
	case !r.Output:
		return "it returns " + r.Result
	case r.InputAndCall && r.Second != "call":
		return "its second argument is not named call"
	case !r.Input && !r.InputAndCall:
		return "it takes other arguments"
	}
	return ""
}
