// Package gem is the whole program of GEM, with every command, for tools of your own.
//
// A frontend inserts a row into core_tool_calls. A worker claims it, checks it against the registry, runs the tool's handler,
// and writes exactly one receipt. A program says which tools there are:
//
//	//go:embed tools.registry.json
//	var registry []byte
//
//	func main() {
//		gem.Main(gem.Program{Domains: []any{Shop{}}, Registry: registry})
//	}
//
// Package handlers has the contract of a tool's handler, package client makes calls and reads their receipts, and
// examples/own-tools is a small program of its own module.
package gem

import (
	_ "embed"
	"io/fs"

	"github.com/gemworker/gem/internal/cli"
)

// Program says what a program adds to GEM: its domains, their tools' registry, and tables of its own.
type Program struct {
	// Domains are the domains of tools: for each, a value whose exported methods are its tools, or a handlers.Domain where it
	// needs configuration, connections or tables. The tool shop.order dispatches to the method Order of a domain whose type is
	// named Shop. Domain names must be unique, and every domain has at least one method.
	Domains []any
	// Registry is the tools.registry.json of the program: the tools' names, schemas, idempotency and timeouts. It is required.
	// It may include entries of GEM's own tools, whose domains are then among Domains; that of wait always is.
	// At run time the variable TOOLS_REGISTRY (a path, or the JSON itself) overrides it, and then a file
	// tools.registry.json in the working directory; the log and the command version show which one is in use.
	Registry []byte
	// Migrations are SQL files of the program, besides those of its domains: NNNNN_name.sql in the root of the file system,
	// each applied once, in the order of their numbers, in a transaction, by the command migrate. Their numbers are the
	// program's own. Nil means none.
	Migrations fs.FS
	// Rules is the rules.json of the program: what its operators restrict. Nil means none. At run time the variable TOOLS_RULES (a
	// path, or the JSON itself) overrides it, and then a file rules.json in the working directory.
	Rules []byte
	// Elsewhere is the domains.json of the program: the domains that live behind HTTP or in MCP servers. Nil means none. At run time the variable
	// GEM_DOMAINS (a path, or the JSON itself) overrides it, and then a file domains.json in the working directory.
	Elsewhere []byte
}

// BuiltInRegistry is the tools.registry.json of the built-in domains, as it was when GEM was built. It includes the entries
// of GEM's own tools: registry.Parse adds them.
//
//go:embed tools.registry.json
var BuiltInRegistry []byte

// What a build may state: go build -ldflags "-X github.com/gemworker/gem.version=v1.2.3 -X github.com/gemworker/gem.commit=0123abc".
// What it leaves empty comes from what the Go command records in the binary.
var version, commit string

// Main runs the command that the arguments of the process name, such as worker, migrate or demo, and ends the process with
// its exit code; --help lists them. Its texts call the program gem, so build it under that name. A Program that is put
// together wrongly, such as one without a registry, is an error of every command. SIGINT and SIGTERM shut a command down gracefully,
// and a second one ends it at once.
func Main(p Program) {
	cli.Main(cli.Program{Domains: p.Domains, Registry: p.Registry, Migrations: p.Migrations, Rules: p.Rules, Elsewhere: p.Elsewhere, Version: version, Commit: commit})
}
