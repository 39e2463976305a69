package cli

import (
	"cmp"
	"crypto/rand"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/sdk"
	"github.com/spf13/cobra"
)

// first holds the files of gem init. The folder common is for all kinds, durable for kinds with a durable tool, and
// shared for the other kinds. Each kind also has its own folder.
//
//go:embed first
var first embed.FS

// firstNames maps the names of embedded files to their real ones, where they differ.
var firstNames = map[string]string{"env": ".env", "gitignore": ".gitignore"}

// firstKind is a kind of tool for which gem init writes files.
type firstKind struct {
	permission string    // of the tool
	next       string    // the commands after gem init
	sdk        *embed.FS // for durable tools; nil for others
}

var firstKinds = map[string]firstKind{
	"sql": {"write:db", `  gem dev                       # a private Postgres and a worker, until Ctrl-C
  gem call shop.refund '{"order_id": 1, "amount": 20}' --wait     # in a second terminal, in this folder
  gem rules test rules.test.json`, nil},
	"http": {"pay:money", `  node --env-file=.env server.mjs
  gem dev                       # in a second terminal: a private Postgres and a worker, until Ctrl-C
  gem call shop.refund '{"order_id": 1, "amount": 20}' --wait     # in a third one`, nil},
	"go": {"write:db", `  go mod tidy
  go run . dev                  # a private Postgres and a worker, until Ctrl-C
  go run . call shop.refund '{"order_id": 1, "amount": 20}' --wait     # in a second terminal, in this folder`, nil},
	"typescript": {"", `  node --env-file=.env --test   # Node.js 22.18 or newer
  node --env-file=.env shop.ts  # the service, until Ctrl-C
  gem dev                       # in a second terminal: a private Postgres and a worker, until Ctrl-C
  gem call shop.refund '{"order_id": 1, "amount": 20}' --wait     # in a third one
  gem call shop.refund '{"order_id": 2, "amount": 150}' --wait    # gem dev prints how to approve it
  gem types typescript --out gem-tools.ts                         # writes the types of your tools`, &sdk.TypeScript},
	"python": {"", `  set -a; . ./.env; set +a
  python3 -m unittest
  python3 shop.py               # the service, until Ctrl-C
  gem dev                       # in a second terminal: a private Postgres and a worker, until Ctrl-C
  gem call shop.refund '{"order_id": 1, "amount": 20}' --wait     # in a third one
  gem call shop.refund '{"order_id": 2, "amount": 150}' --wait    # gem dev prints how to approve it
  gem types python --out gem_tools.py                             # writes the types of your tools`, &sdk.Python},
}

func initCommand() *cobra.Command {
	var clone string
	cmd := &cobra.Command{
		Use:   "init [sql|http|go|typescript|python]",
		Short: "Write the first files for your own tools into this folder",
		Long: `
The files are a registry with one tool, the code of the tool, a rule that asks
for an approval, a test and .env. The tool is a function in SQL (the default), a
service behind HTTP in JavaScript, or a method in Go.

With typescript or python, there is no rule: the tool is durable, asks for the
approval itself, calls a second tool, and continues after a crash. The SDK is
written next to it, as plain files.

It overwrites nothing: if one of the files exists, it writes none.`,
		Example: "  mkdir shop && cd shop && gem init sql\n  mkdir shop && cd shop && gem init typescript",
		Args:    takes("sql, http, go, typescript or python, or nothing", 0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := cmp.Or(strings.Join(args, ""), "sql")
			kind, known := firstKinds[name]
			if !known {
				return usage("%q is not a kind of tool: use sql, http, go, typescript or python", name)
			}
			files, err := firstFiles(name, kind, clone)
			if err == nil {
				err = writeFirst(files)
			}
			if err != nil {
				return err
			}
			names := strings.Join(slices.Sorted(maps.Keys(files)), ", ")
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Written: %s\n\nNext:\n%s\n", names, kind.next)
			return err
		},
	}
	cmd.Flags().StringVar(&clone, "gem", "",
		"for go: the `folder` of your clone of GEM; by default the one in which this program was built")
	return cmd
}

// firstFiles returns the files of a kind by their names.
func firstFiles(name string, kind firstKind, clone string) (map[string]string, error) {
	port, err := steadyPort()
	if err != nil {
		return nil, err
	}
	key := make([]byte, 24)
	_, _ = rand.Read(key) // it never fails
	fill := []string{
		"PERMISSION", kind.permission, "SERVICE_PORT", strconv.Itoa(port),
		"SERVICE_SECRET", "whsec_" + base64.StdEncoding.EncodeToString(key),
	}
	files := map[string]string{}
	if name == "go" {
		version, replace, err := ownModule(clone)
		if err != nil {
			return nil, err
		}
		fill = append(fill, "GEM_VERSION", version+replace)
	}
	shared := "first/shared"
	if kind.sdk != nil {
		shared = "first/durable"
		err := fs.WalkDir(kind.sdk, ".", func(file string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				var text []byte
				text, err = kind.sdk.ReadFile(file)
				files[path.Base(file)] = string(text)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for _, folder := range []string{"first/common", shared, "first/" + name} {
		entries, err := fs.ReadDir(first, folder)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			text, err := first.ReadFile(folder + "/" + e.Name())
			if err != nil {
				return nil, err
			}
			to := cmp.Or(firstNames[e.Name()], strings.TrimSuffix(e.Name(), ".tmpl"))
			files[to] += strings.NewReplacer(fill...).Replace(string(text)) // .env has a shared part
		}
	}
	return files, nil
}

// writeFirst writes all files or none.
func writeFirst(files map[string]string) error {
	var there []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			there = append(there, name)
		}
	}
	if len(there) > 0 {
		return usage("this folder already has %s, and gem init overwrites nothing: run it in an empty folder",
			strings.Join(there, ", "))
	}
	url := runningDev()
	if url == "" {
		state, err := openDevState(false)
		if err != nil {
			return err
		}
		url = state.url()
		state.close()
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		mode := os.FileMode(0o644)
		if name == ".env" {
			mode = 0o600
		}
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = f.WriteString(strings.ReplaceAll(files[name], "DEV_URL", url))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

const modulePath = "github.com/gemworker/gem"

var released = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// ownModule returns the version of GEM for a go.mod: that of this program if it is a release. Otherwise replace is
// the rest of the line and the lines after it, which name the folder of the source.
func ownModule(clone string) (version, replace string, err error) {
	if clone == "" {
		if info, ok := debug.ReadBuildInfo(); ok {
			for _, m := range append(info.Deps, &info.Main) {
				if m.Path == modulePath && m.Replace == nil && released.MatchString(m.Version) {
					return m.Version, "", nil
				}
			}
		}
		_, file, _, _ := runtime.Caller(0)
		clone = filepath.Dir(filepath.Dir(filepath.Dir(file)))
	}
	clone, err = filepath.Abs(clone)
	if err != nil {
		return "", "", err
	}
	text, err := plainfile.Read(filepath.Join(clone, "go.mod"))
	if err != nil || !strings.HasPrefix(strings.TrimSpace(string(text)), "module "+modulePath+"\n") {
		return "", "", usage("a program in Go needs the source of GEM, and %s is not a clone of it: "+
			"name yours with --gem FOLDER", clone)
	}
	if strings.ContainsAny(clone, " \t'\"()`") {
		clone = strconv.Quote(clone)
	}
	return "v0.0.0", "\n\nreplace " + modulePath + " => " + clone, nil
}
