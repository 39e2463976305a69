package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/backends/mcpclient"
	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/registry"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func registryImportCommand(p *Program) *cobra.Command {
	var (
		file              string
		dryRun, frontends bool
	)
	cmd := &cobra.Command{
		Use:   "import DOMAIN",
		Short: "Write the tools of an MCP server into the registry",
		Long: `
DOMAIN is an MCP server of domains.json. The command lists its tools:
create-issue of the server github becomes github.create_issue. A new entry has
the server's description and schemas. If the server declares that the tool only
reads, it needs read:DOMAIN, otherwise write:DOMAIN; if it declares that the
tool only reads or can be called twice without harm, its idempotency is
safe-retry, otherwise none. The tools are closed to signed-in users, unless
--frontends opens them.

A later import changes only the fields that the server has changed, and keeps
timeouts, permissions and other manual edits. If the server has removed a tool,
the command reports it but keeps the entry. If anything changes, it raises the
version and prints the changes.

The registry is FILE, or else the file in TOOLS_REGISTRY, or else
tools.registry.json in the working directory. A missing FILE starts as a copy of
the registry in force.`,
		Example: "  gem registry import github --dry-run\n  gem registry import github --frontends",
		Args:    takes("the name of a domain", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			im := &importing{program: p, domain: args[0], frontends: frontends, dryRun: dryRun, out: cmd.OutOrStdout(),
				notes: cmd.ErrOrStderr()}
			if err := im.open(file); err != nil {
				return err
			}
			return im.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "the registry `file` to write")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would change, and write nothing")
	cmd.Flags().BoolVar(&frontends, "frontends", false,
		"let signed-in users call the tools, unless their entries close them")
	return cmd
}

// importing is one run of gem registry import.
type importing struct {
	program           *Program
	domain            string
	frontends, dryRun bool
	out, notes        io.Writer

	domains *backends.Domains
	path    string // of the registry
	text    []byte
	isNew   bool
}

// open finds the server and the registry.
func (im *importing) open(file string) (err error) {
	var from string
	if im.domains, from, err = im.program.loadDomains(os.Getenv("GEM_DOMAINS")); err != nil {
		return usageError{err}
	}
	if im.domains == nil {
		return usage(`no domains.json defines the MCP server %[1]s: write {"version": "1.0.0", "%[1]s": {"mcp": {"command": "npx", "args": ["-y", "PACKAGE"]}}} or `+
			`{"version": "1.0.0", "%[1]s": {"mcp": {"url": "https://..."}}} into domains.json, or set GEM_DOMAINS to its path`,
			im.domain)
	}
	if _, is := im.domains.Servers[im.domain]; !is {
		why := "has no domain " + im.domain
		if _, is := im.domains.Services[im.domain]; is {
			why = "has " + im.domain + " behind HTTP, where tools do not describe themselves: write their entries by hand"
		}
		return usage("%s %s; its domains are %s", from, why, cmp.Or(strings.Join(im.domains.Names(), ", "), "none"))
	}

	chosen := strings.TrimSpace(os.Getenv("TOOLS_REGISTRY"))
	im.path = file
	if im.path == "" && !strings.HasPrefix(chosen, "{") {
		im.path = cmp.Or(chosen, "tools.registry.json")
		if _, err := os.Stat(im.path); chosen == "" && errors.Is(err, fs.ErrNotExist) {
			im.path = ""
		}
	}
	if im.path == "" {
		return usage("the registry in force is not a file that can be changed: name one with --file tools.registry.json, " +
			"and let the worker use that file")
	}
	im.text, err = plainfile.Read(im.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && file == "":
		return usage("there is no registry at %s: set TOOLS_REGISTRY to its path, or name it with --file", im.path)
	case errors.Is(err, fs.ErrNotExist):
		im.isNew, im.text = true, im.program.Registry
		if strings.HasPrefix(chosen, "{") {
			im.text = []byte(chosen)
		} else if _, from, err := im.program.loadRegistry(chosen); err != nil {
			return err
		} else if from != builtInto {
			if im.text, err = plainfile.Read(from); err != nil {
				return fmt.Errorf("cannot read the registry: %w", err)
			}
		}
	case err != nil:
		return fmt.Errorf("cannot read the registry: %w", err)
	}
	return nil
}

func (im *importing) run(ctx context.Context) error {
	old, err := registry.Parse(im.text)
	if err != nil {
		return fmt.Errorf("the registry %s is invalid:\n%w", im.path, err)
	}
	entries, err := registry.Entries(im.text)
	if err != nil {
		return err
	}
	tools, err := im.ask(ctx)
	if err != nil {
		return err
	}
	found := mcpclient.NewImport(entries, im.domain, tools, im.frontends)
	for _, note := range found.Notes {
		fmt.Fprintln(im.notes, "note:", note)
	}
	const most = 50
	for i, refused := range found.Refused {
		if i == most {
			fmt.Fprintf(im.notes, "not imported: %d more\n", len(found.Refused)-most)
			break
		}
		fmt.Fprintln(im.notes, "not imported:", refused)
	}
	if len(found.Entries) == 0 && !im.isNew {
		_, err := fmt.Fprintf(im.out, "%s has %s; no change in %s, version %s\n",
			im.domain, count(len(tools), "tool"), im.path, old.FileVersion)
		return err
	}
	text, err := registry.Rewrite(im.text, registry.NextVersion(old.FileVersion), found.Entries)
	if err != nil {
		return err
	}
	now, err := registry.Parse(text)
	if err != nil {
		return fmt.Errorf("nothing was written, because the registry would be invalid with these tools:\n%w", err)
	}
	if _, _, err := im.program.fit(now, im.domains); err != nil {
		return fmt.Errorf("nothing was written: %w", err)
	}
	if err := im.print(old, now); err != nil || im.dryRun {
		return err
	}
	return im.write(text)
}

// ask connects to the server and requests its tools.
func (im *importing) ask(ctx context.Context) ([]mcpclient.Tool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// The server's stderr explains why it does not start.
	var said bytes.Buffer
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "m", ConsoleSeparator: " "}),
		zapcore.Lock(zapcore.AddSync(&said)), zap.InfoLevel)
	servers := mcpclient.New(im.domains.Servers, os.Getenv, zap.New(core))
	tools, err := servers.Tools(ctx, im.domain)
	servers.Close()
	if err != nil {
		fmt.Fprint(im.notes, lines(said.String()))
		return nil, fmt.Errorf("%s: %w", im.domain, err)
	}
	return tools, nil
}

// print prints the changes.
func (im *importing) print(old, now *registry.Registry) error {
	verb := "written to"
	if im.dryRun {
		verb = "would be written to"
	}
	said := []string{fmt.Sprintf("version %s becomes %s; %s %s", old.FileVersion, now.FileVersion, verb, im.path)}
	for _, line := range registry.Compare(old, now) {
		name, _, _ := strings.Cut(line, " ")
		if t, ok := now.Tool(name); ok && strings.HasSuffix(line, " was added") {
			line += fmt.Sprintf(": %s, %s, %s", t.Idempotency.Mode, span(t.Timeout),
				cmp.Or(strings.Join(t.Permissions, " "), "no permission"))
			if why := t.ClosedBecause(); why != "" {
				line += ", closed to signed-in users"
			}
		}
		said = append(said, line)
	}
	_, err := fmt.Fprintln(im.out, strings.Join(said, "\n"))
	return err
}

// write replaces the file atomically.
func (im *importing) write(text []byte) error {
	path, err := filepath.EvalSymlinks(im.path)
	if err != nil {
		path = im.path
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".registry-*")
	if err != nil {
		return fmt.Errorf("write the registry: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write the registry: %w", err)
	}
	return nil
}
