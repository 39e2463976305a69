package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/internal/envvar"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/mcp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mcpConfig is the configuration of gem mcp. A flag or its variable sets each field. No variable begins with MCP_,
// since clients pass their own environment to servers.
type mcpConfig struct {
	Subject      string        `envconfig:"GEM_MCP_SUBJECT" default:"mcp" may:"1 to 255 printable characters" desc:"the user on whose behalf calls are made: their created_by"`
	Tools        []string      `envconfig:"GEM_MCP_TOOLS" may:"a list of names and patterns such as leads.*,os.list_tasks" desc:"offer only these: names and patterns such as leads.*, separated by commas"`
	ReadOnly     bool          `envconfig:"GEM_MCP_READ_ONLY" default:"false" may:"true or false" desc:"offer only the tools whose permissions are all read:…"`
	Names        string        `envconfig:"GEM_MCP_NAMES" default:"underscore" may:"underscore or dot" desc:"list leads.create as leads_create (underscore), which all models accept, or unchanged (dot)"`
	Wait         time.Duration `envconfig:"GEM_MCP_WAIT" default:"45s" may:"a duration from 1s to 1h, such as 45s" desc:"how long a request waits for its call before the answer is pending; most clients time out after 60s"`
	TaskAfter    time.Duration `envconfig:"GEM_MCP_TASK_AFTER" default:"2s" may:"a duration from 0s to 1h, such as 2s" desc:"when a call becomes a task, for clients that know tasks; 0s means at once"`
	OnCancel     string        `envconfig:"GEM_MCP_ON_CANCEL" default:"cancel" may:"cancel or keep" desc:"whether to cancel or keep a call whose request the client cancels"`
	OnDisconnect string        `envconfig:"GEM_MCP_ON_DISCONNECT" default:"keep" may:"keep or cancel" desc:"whether to keep or cancel a call whose client disconnects while it waits"`
	MaxResult    int           `envconfig:"GEM_MCP_MAX_RESULT" default:"102400" may:"a number of bytes from 1024 to 16777216" desc:"the largest result to return, in bytes; a larger one is cut, with a link to the receipt"`
	KeyArgument  bool          `envconfig:"GEM_MCP_KEY_ARGUMENT" default:"false" may:"true or false" desc:"give tools that write an optional argument gem_key, for clients that cannot send a key in _meta"`
	DBRole       string        `envconfig:"GEM_MCP_DB_ROLE" may:"the name of a role" desc:"the role whose rights callers have in Postgres; by default authenticated if it exists, otherwise gem_frontend"`
	DashboardURL string        `envconfig:"GEM_DASHBOARD_URL" may:"a URL" desc:"where people answer questions and approve calls, for links in answers"`
}

// mcpFlags are the flags whose names differ from their variables. Secrets have no flag, since others can see the
// arguments of a process.
var mcpFlags = map[string]string{"GEM_MCP_SUBJECT": "as", "GEM_DASHBOARD_URL": "", "GEM_MCP_LISTEN": "http",
	"GEM_MCP_JWT_SECRET": ""}

// Wrong returns every rule that a field violates, by variable. [envvar.Read] calls it.
func (c *mcpConfig) Wrong() map[string]string {
	wrong := map[string]string{}
	for name, right := range map[string]bool{
		"GEM_MCP_SUBJECT": utf8.RuneCountInString(c.Subject) <= 255 &&
			strings.IndexFunc(c.Subject, func(r rune) bool { return !unicode.IsPrint(r) }) < 0,
		"GEM_MCP_NAMES":         slices.Contains([]string{"underscore", "dot"}, c.Names),
		"GEM_MCP_WAIT":          c.Wait >= time.Second && c.Wait <= time.Hour,
		"GEM_MCP_TASK_AFTER":    c.TaskAfter >= 0 && c.TaskAfter <= time.Hour,
		"GEM_MCP_ON_CANCEL":     slices.Contains([]string{"cancel", "keep"}, c.OnCancel),
		"GEM_MCP_ON_DISCONNECT": slices.Contains([]string{"cancel", "keep"}, c.OnDisconnect),
		"GEM_MCP_MAX_RESULT":    c.MaxResult >= 1<<10 && c.MaxResult <= 16<<20,
	} {
		if !right {
			wrong[name] = ""
		}
	}
	return wrong
}

func mcpCommand(p *Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer the registry's tools to an agent, as an MCP server",
		Long: `
An agent starts it as a child process and talks to it over stdin and stdout,
which carry only messages; logs go to stderr. Each tool call is a row of
core_tool_calls, made for the user that --as names. A worker runs it: the
command itself runs no tool. A call continues even if the agent or this process
ends, and a request with the same key returns the same call. The command does
not offer tools that are closed to signed-in users, or tools of the domain wait.

With --http it serves many clients, each with the rights of its own user; see
docs/mcp.md for tokens, OAuth and proxies. GEM_MCP_JWT_SECRET, the secret of
HS256 with --auth jwt, has no flag.

The command starts and lists the tools without a database; a call needs
DATABASE_URL. Each flag overrides its variable. docs/mcp.md has the settings for
Claude Code, Claude Desktop, Cursor, VS Code and others.`,
		Example: "  gem mcp\n  gem mcp --as ada --tools 'leads.*,os.list_tasks' --read-only\n  gem mcp --http " +
			"127.0.0.1:8848\n  claude mcp add gem --env DATABASE_URL=postgres://… -- gem mcp",
	}
	flags := newVariableFlags(cmd.Flags(), mcpFlags, &mcpConfig{}, &mcp.HTTPConfig{})
	cmd.AddCommand(mcpTokenCommand())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var (
			c mcpConfig
			h mcp.HTTPConfig
		)
		if err := flags.read(&c, &h); err != nil {
			return err
		}
		base, err := config.Load()
		if err != nil {
			return err
		}
		log := base.Logger()
		config.RouteStandardLog(log)
		defer func() { _ = log.Sync() }()
		o, from, err := p.mcpOptions(&c)
		if err != nil {
			return err
		}
		o.Log = log
		connections, mode := 1, pgpool.Unknown
		if h.Listen != "" {
			connections, o.ListenURL = h.Connections, listenURL(base)
		}
		o.Pool = func(ctx context.Context) (*pgxpool.Pool, error) { return mcpPool(ctx, int32(connections), mode) }
		server, err := mcp.New(o)
		if err != nil {
			return usageError{err}
		}
		defer server.Close()
		// A client starts it in a folder of its choice, where the registry may differ from the worker's.
		fmt.Fprintf(cmd.ErrOrStderr(), "gem mcp: the tools come from registry %s (%s)\n", o.Registry.Version, from)
		if closed := server.Closed(); closed != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), "gem mcp: "+closed)
		}
		if h.Listen != "" {
			mode = mcpMode(cmd.Context())
			return serveMCP(cmd.Context(), server, h)
		}
		signal.Ignore(syscall.SIGPIPE) // an answer to a disconnected client must not end the process
		if os.Getenv("GOGC") == "" {
			debug.SetGCPercent(50) // a user runs many of these, and they are mostly idle
		}
		return server.ServeStdio(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
	}
	return cmd
}

// mcpOptions returns the options that stdio and HTTP share. from is the source of the registry.
func (p *Program) mcpOptions(c *mcpConfig) (o mcp.Options, from string, err error) {
	r, from, err := p.loadRegistry(os.Getenv("TOOLS_REGISTRY"))
	if err != nil {
		return o, "", usageError{err}
	}
	version, _ := p.version()
	return mcp.Options{
		Registry: r, Version: version, Subject: c.Subject, Dots: c.Names == "dot", Tools: c.Tools, ReadOnly: c.ReadOnly,
		Wait: c.Wait, TaskAfter: c.TaskAfter,
		KeepOnCancel: c.OnCancel == "keep", CancelOnDisconnect: c.OnDisconnect == "cancel", MaxResult: c.MaxResult,
		KeyArgument: c.KeyArgument, DBRole: c.DBRole, DashboardURL: c.DashboardURL,
	}, from, nil
}

// mcpMode looks for a pooler before a server of many users starts, because statements stay prepared without one. If it
// cannot tell, the server expects one.
func mcpMode(ctx context.Context) pgpool.PoolMode {
	cfg, err := configFromEnv()
	if err != nil {
		return pgpool.Unknown // the first call reports it
	}
	stated := statedModes[cfg.DatabasePooler]
	if stated == pgpool.Direct {
		return stated // even if nothing answers yet
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	mode, err := pgpool.Probe(ctx, cfg.DatabaseURL.Reveal(), stated)
	if err != nil {
		return pgpool.Unknown
	}
	return mode
}

// mcpPool opens the server's pool at the first call. It closes idle connections, since clients keep their servers for
// days.
func mcpPool(ctx context.Context, connections int32, mode pgpool.PoolMode) (*pgxpool.Pool, error) {
	cfg, err := configFromEnv()
	if err != nil {
		return nil, err
	}
	return pgpool.Open(context.WithoutCancel(ctx), cfg.DatabaseURL.Reveal(),
		pgpool.Options{MaxConns: connections, Mode: mode, OwnSQL: true, Name: "gem mcp",
			CloseIdle: 30 * time.Second})
}

// variableFlags maps the names of variables to their flags. A flag that is given overrides its variable.
type variableFlags map[string]*pflag.Flag // by the variable's name

// newVariableFlags adds a flag for each variable of structs. The flag has the variable's name unless names has
// another; "" means no flag.
func newVariableFlags(flags *pflag.FlagSet, names map[string]string, configs ...any) variableFlags {
	of := variableFlags{}
	for _, v := range envvar.Describe(configs...) {
		name, named := names[v.Name]
		if !named {
			name = strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(v.Name, "GEM_MCP_")), "_", "-")
		}
		if name == "" {
			continue
		}
		if usage := v.Description + " (" + v.Name + ")"; v.May == "true or false" {
			flags.Bool(name, false, usage)
		} else {
			flags.String(name, v.Default, usage)
		}
		of[v.Name] = flags.Lookup(name)
	}
	return of
}

// read fills structs like [envvar.Read]. Its error names the flag if the value came from a flag.
func (of variableFlags) read(configs ...any) error {
	err := envvar.Read(func(variable string) string {
		if f := of[variable]; f != nil && f.Changed {
			return f.Value.String()
		}
		return os.Getenv(variable)
	}, configs...)
	var invalid *config.InvalidError
	if errors.As(err, &invalid) {
		for i, problem := range invalid.Problems {
			variable, rest, _ := strings.Cut(problem, " ")
			if f := of[variable]; f != nil && f.Changed {
				invalid.Problems[i] = "--" + f.Name + " " + rest
			}
		}
	}
	return err
}
