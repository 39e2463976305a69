// Package gem is the whole gem command as a library, to which you add your own tools.
//
// A frontend inserts a row into core_tool_calls. A worker claims it, checks it against the registry, runs the tool's
// handler, and writes exactly one receipt. Your program defines the tools:
//
//	//go:embed tools.registry.json
//	var registry []byte
//
//	func main() {
//		gem.Main(gem.Program{Domains: []any{Shop{}}, Registry: registry})
//	}
//
// Package handlers defines the contract of a tool's handler, package client makes calls and reads their receipts, and
// examples/own-tools is a small program in a separate module.
package gem

import (
	_ "embed"
	"io/fs"

	"github.com/gemworker/gem/internal/cli"
)

// Program is what your program adds to GEM: domains, their registry, migrations, rules and backends.
type Program struct {
	// Domains are the domains of tools. Each is a value whose exported methods are its tools, or a handlers.Domain if it
	// needs configuration, connections or tables. The tool shop.order dispatches to the method Order of a domain whose
	// type is named Shop. Domain names must be unique, and every domain must have at least one method.
	Domains []any
	// Registry is the tools.registry.json of the program: the tools' names, schemas, idempotency and timeouts. It is
	// required. It may include entries of GEM's own tools, whose domains must be in Domains. The domain named wait, which
	// asks people questions, is always present. At run time, TOOLS_REGISTRY (a path, or the JSON itself) takes
	// precedence, then a file tools.registry.json in the working directory, then this field. The log and `gem version`
	// show which one is in use.
	Registry []byte
	// Migrations are SQL files of the program, in addition to those of its domains. They are in the root of this file
	// system, and are named NNNNN_name.sql. The command migrate applies each once, in the order of their numbers, in a
	// transaction. Their numbers are independent of GEM's. Nil means none.
	Migrations fs.FS
	// Rules is the program's rules.json: the restrictions that its operators put on calls. Nil means none. At run time,
	// TOOLS_RULES (a path, or the JSON itself) takes precedence, then a file rules.json in the working directory, then
	// this field.
	Rules []byte
	// Backends is the domains.json of the program: the domains whose tools are behind HTTP or in MCP servers. Nil means
	// none. At run time, GEM_DOMAINS (a path, or the JSON itself) takes precedence, then a file domains.json in the
	// working directory, then this field.
	Backends []byte
}

// BuiltInRegistry is the tools.registry.json that comes with GEM, embedded in this package. It has the entries of some
// of GEM's own tools, and names others in its field "include". registry.Parse adds the entries of those.
//
//go:embed tools.registry.json
var BuiltInRegistry []byte

// version and commit may be set by a build: go build -ldflags "-X github.com/gemworker/gem.version=v1.2.3 -X
// github.com/gemworker/gem.commit=0123abc". Empty values come from the Go command's record in the binary.
var version, commit string

// Main reads the process's arguments, runs the command that they name, such as worker, migrate or demo, and exits with
// the command's exit code; --help lists the commands. Help texts and error messages call the program gem, so give your
// binary that name. If the Program is invalid, for example without a registry, every command fails. SIGINT and SIGTERM
// shut a command down gracefully, and a second one ends it at once.
func Main(p Program) {
	cli.Main(cli.Program{Domains: p.Domains, Registry: p.Registry, Migrations: p.Migrations, Rules: p.Rules,
		Backends: p.Backends, Version: version, Commit: commit})
}
