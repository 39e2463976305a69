// Package walls checks the imports between the packages of the program, and the types that they export.
package walls

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/gemworker/gem"

// pkg is a package of the module without its tests.
type pkg struct {
	name    string
	imports []string // packages of the module, by folder
	files   []*ast.File
}

// packages returns the packages of the module by folder. The root package is ".".
func packages(t *testing.T) map[string]*pkg {
	t.Helper()
	const root = "../../.."
	all := map[string]*pkg{}
	err := fs.WalkDir(os.DirFS(root), ".", func(file string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			_, other := os.Stat(filepath.Join(root, file, "go.mod"))
			if name := e.Name(); file != "." && (other == nil || name == "node_modules" || name == "testdata" ||
				strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p := all[path.Dir(file)]
		if p == nil {
			p = &pkg{name: f.Name.Name}
			all[path.Dir(file)] = p
		}
		p.files = append(p.files, f)
		for _, spec := range f.Imports {
			if folder, ours := folderOf(spec); ours && !slices.Contains(p.imports, folder) {
				p.imports = append(p.imports, folder)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 || all["."] == nil || all["receipts"] == nil {
		t.Fatalf("found only %d packages", len(all))
	}
	return all
}

// folderOf returns the folder of an imported package, and whether the package belongs to the module.
func folderOf(spec *ast.ImportSpec) (folder string, ours bool) {
	imported, _ := strconv.Unquote(spec.Path.Value)
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

func isInternal(folder string) bool {
	return strings.Contains("/"+folder+"/", "/internal/")
}

func TestNoTwoPackagesShareAName(t *testing.T) {
	t.Parallel()
	folders := map[string]string{}
	for folder, p := range packages(t) {
		if other, taken := folders[p.name]; taken && p.name != "main" {
			t.Errorf("%s and %s are both called %s", folder, other, p.name)
		}
		folders[p.name] = folder
	}
}

func TestPublicPackagesNameNoInternalType(t *testing.T) {
	t.Parallel()
	all := packages(t)
	for folder, p := range all {
		if isInternal(folder) || p.name == "main" {
			continue
		}
		exported := exportedTypes(p)
		for _, f := range p.files {
			named := map[string]string{} // internal packages, by their names in the file
			for _, spec := range f.Imports {
				if imported, ours := folderOf(spec); ours && isInternal(imported) {
					name := all[imported].name
					if spec.Name != nil {
						name = spec.Name.Name
					}
					named[name] = imported
				}
			}
			for _, decl := range f.Decls {
				shown(decl, exported, func(of string, e ast.Node) {
					ast.Inspect(e, func(n ast.Node) bool {
						s, ok := n.(*ast.SelectorExpr)
						if !ok {
							return true
						}
						if x, ok := s.X.(*ast.Ident); ok && named[x.Name] != "" {
							t.Errorf("%s.%s shows the internal type %s.%s", folder, of, x.Name, s.Sel.Name)
						}
						return true
					})
				})
			}
		}
	}
}

// exportedTypes returns the names of the exported types of a package.
func exportedTypes(p *pkg) map[string]bool {
	exported := map[string]bool{}
	for _, f := range p.files {
		for _, decl := range f.Decls {
			if g, ok := decl.(*ast.GenDecl); ok {
				for _, spec := range g.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && s.Name.IsExported() {
						exported[s.Name.Name] = true
					}
				}
			}
		}
	}
	return exported
}

// shown visits the types that go doc prints for a declaration.
func shown(decl ast.Decl, exported map[string]bool, visit func(of string, e ast.Node)) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && (d.Recv == nil || exported[receiver(d.Recv.List[0].Type)]) {
			visit(d.Name.Name, d.Type)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					shownOf(s.Name.Name, s.Type, visit)
				}
			case *ast.ValueSpec:
				if slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
					visit(s.Names[0].Name, s)
				}
			}
		}
	}
}

// shownOf visits the fields and methods that go doc prints for a type.
func shownOf(name string, e ast.Expr, visit func(of string, e ast.Node)) {
	var fields []*ast.Field
	switch of := e.(type) {
	case *ast.StructType:
		fields = of.Fields.List
	case *ast.InterfaceType:
		fields = of.Methods.List
	default:
		visit(name, e)
	}
	for _, f := range fields {
		if len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
			visit(name, f.Type)
		}
	}
}

func receiver(e ast.Expr) string {
	switch of := e.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.IndexListExpr:
		return receiver(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}

// layers has the folders of the shipped packages. A package may import only packages of the layers below its own.
var layers = [][]string{
	{"cmd/gem"},
	{"."},
	{"internal/cli"},
	{"internal/login"},
	{"mcp", "dashboard", "handlers/builtin"},
	{"internal/prose", "client/view"},
	{"client", "worker", "handlers/agent", "handlers/comms", "handlers/entity", "handlers/extract", "handlers/leads",
		"handlers/llm", "handlers/os", "handlers/wait", "handlers/web"},
	{"audit", "worker/internal/durable", "backends/mcpclient", "backends/sqlfunc", "backends/webhook", "handlers/table",
		"internal/provider/router"},
	{"worker/internal/plain"},
	{"internal/archive", "internal/hook", "internal/lanes", "internal/postgres/listen", "internal/provider/progress",
		"internal/rulesreplay", "migrations"},
	{"backends", "grounding", "internal/config", "internal/provider/ledger", "internal/provider/routes",
		"internal/store", "internal/types"},
	{"handlers/binding", "handlers/value", "internal/issuer", "internal/objectstore", "internal/provider/anthropic",
		"internal/provider/gemini",
		"internal/provider/openai", "rules", "notify"},
	{"handlers/exchange"},
	{"handlers", "registry"},
	{"internal/provider"},
	{"internal/postgres/pgserver", "internal/postgrest", "internal/schema"},
	{"defects", "internal/envvar", "internal/npm", "internal/oneline", "internal/plainfile", "internal/plainjson",
		"internal/batch", "internal/outbound", "internal/postgres/pgerror", "internal/postgres/pgpool", "internal/scrub",
		"internal/shares", "internal/telemetry", "receipts", "sdk"},
}

// isRig reports whether a package serves only tests or the repository, and is not part of the program.
func isRig(folder string) bool {
	return strings.HasPrefix(folder, "internal/testing/") || strings.HasPrefix(folder, "scripts/") ||
		folder == "handlers/handlertest"
}

func TestImportsPointDown(t *testing.T) {
	t.Parallel()
	at := map[string]int{}
	for i, layer := range layers {
		for _, folder := range layer {
			at[folder] = i
		}
	}
	all := packages(t)
	for folder := range at {
		if all[folder] == nil {
			t.Errorf("there is no package %s: remove it from the layers", folder)
		}
	}
	for folder, p := range all {
		layer, known := at[folder]
		switch {
		case isRig(folder):
			continue
		case !known:
			t.Errorf("%s has no layer: add it to one", folder)
		}
		for _, imported := range p.imports {
			if below, known := at[imported]; known && below <= layer || isRig(imported) {
				t.Errorf("%s imports %s, which is not below it", folder, imported)
			}
		}
	}
}

// A reader of receipts needs no other package of the program.
func TestReceiptsDependOnNothingElse(t *testing.T) {
	t.Parallel()
	if p := packages(t)["receipts"]; len(p.imports) > 0 {
		t.Errorf("receipts imports %s", strings.Join(p.imports, ", "))
	}
}
