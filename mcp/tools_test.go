package mcp

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/registry"
	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/santhosh-tekuri/jsonschema/v5"
)

// list returns the tools that a client sees.
func list(t testing.TB, d *Server) (tools []*sdk.Tool, names []string) {
	t.Helper()
	r, err := d.agent(t, "ada", nil).ListTools(t.Context(), nil)
	if err != nil || r.NextCursor != "" || r.TTLMs != 60_000 {
		t.Fatalf("got %+v, %v", r, err)
	}
	for _, tool := range r.Tools {
		names = append(names, tool.Name)
	}
	return r.Tools, names
}

func TestToolsAreListedAsTheOptionsSay(t *testing.T) {
	t.Parallel()
	own := []string{"gem_cancel", "gem_result"}
	for name, tc := range map[string]struct {
		change func(*Options)
		want   []string
	}{
		"all that are open": {func(*Options) {}, []string{"shop_hold", "shop_order", "shop_refund", "shop_stock_find"}},
		"with dots": {func(o *Options) { o.Dots = true },
			[]string{"shop.hold", "shop.order", "shop.refund", "shop.stock.find"}},
		"that only read": {func(o *Options) { o.ReadOnly = true }, []string{"shop_stock_find"}},
		"by patterns": {func(o *Options) { o.Tools = []string{"shop.re*", "shop_order", "shop.ship"} },
			[]string{"shop_order", "shop_refund"}},
		"both": {func(o *Options) { o.Tools, o.ReadOnly = []string{"shop.*"}, true },
			[]string{"shop_stock_find"}},
	} {
		_, names := list(t, newShopServer(t, "", tc.change))
		if diff := cmp.Diff(append(own, tc.want...), names); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	d := newShopServer(t, "")
	if said := d.Closed(); !strings.Contains(said, `"frontends": true`) ||
		!strings.HasSuffix(said, ": shop.ship needs the permission send:parcel") {
		t.Errorf("closed: %s", said)
	}
	if said := newShopServer(t, "", func(o *Options) { o.Tools = []string{"shop.order"} }).Closed(); said != "" {
		t.Errorf("a tool that nobody asked for is named: %s", said)
	}
	r, _ := registry.Parse([]byte(shopRegistry))
	if _, err := New(Options{Registry: r, Tools: []string{"shop.odrer"}}); err == nil ||
		!strings.Contains(err.Error(), "did you mean shop.order?") {
		t.Errorf("a pattern that means no tool: %v", err)
	}
}

func TestHintsComeFromPermissionsAndTheMode(t *testing.T) {
	t.Parallel()
	tools, _ := list(t, newShopServer(t, ""))
	no := false
	for name, want := range map[string]sdk.ToolAnnotations{
		"shop_order":      {OpenWorldHint: &no},
		"shop_refund":     {OpenWorldHint: &no, IdempotentHint: true, DestructiveHint: &no},
		"shop_stock_find": {OpenWorldHint: &no, IdempotentHint: true, ReadOnlyHint: true},
		"gem_result":      {OpenWorldHint: &no, IdempotentHint: true, ReadOnlyHint: true},
	} {
		i := slices.IndexFunc(tools, func(tool *sdk.Tool) bool { return tool.Name == name })
		if diff := cmp.Diff(want, *tools[i].Annotations); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if title := map[string]string{"shop_refund": "Refund an order", "shop_order": "shop.order"}[name]; title != "" &&
			tools[i].Title != title {
			t.Errorf("%s: the title is %s", name, tools[i].Title)
		}
	}
	r, _ := registry.Parse([]byte(shopRegistry))
	ship, _ := r.Tool("shop.ship")
	if got := annotations(ship); got.IdempotentHint || !*got.OpenWorldHint || got.ReadOnlyHint {
		t.Errorf("a tool that sends and is safe-retry: %+v", got) // twice, it sends two
	}

}

func TestTheBuiltInToolsAreListedForEveryModel(t *testing.T) {
	t.Parallel()
	r, err := registry.ReadFile("../tools.registry.json")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Options{Registry: r})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	tools, names := list(t, d)
	if !slices.IsSorted(names) || !slices.Contains(names, "leads_create") ||
		slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "wait") }) {
		t.Errorf("got %v", names)
	}
	var told, listed any // as JSON, since a client has read it
	if err := errors.Join(json.Unmarshal(encode(tools), &told), json.Unmarshal(encode(d.Listed()), &listed)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(told, listed); diff != "" {
		t.Errorf("Listed differs from tools/list: %s", diff)
	}
	for _, tool := range tools {
		if !regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`).MatchString(tool.Name) {
			t.Errorf("%s is no name for all models", tool.Name)
		}
		if tool.OutputSchema == nil {
			t.Errorf("%s has no output schema", tool.Name)
		}
		for _, s := range []any{tool.InputSchema, tool.OutputSchema} {
			compile(t, tool.Name, encode(s))
		}
	}
}

func compile(t testing.TB, name string, text []byte) *jsonschema.Schema {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	compiler.Draft = jsonschema.Draft2020
	if err := compiler.AddResource(name, strings.NewReader(string(text))); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	s, err := compiler.Compile(name)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

func TestAnOutputSchemaAlsoTakesWhatIsNoResult(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]string{
		"plain":      `{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}`,
		"references": `{"type":"object","required":["n"],"properties":{"n":{"$ref":"#/$defs/n"},"again":{"$ref":"#"}},"$defs":{"n":{"type":"integer","default":{"$ref":"#/no"}}}}`,
		"an old one": `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","required":["n"],"properties":{"n":{"$ref":"#/definitions/n"}},"definitions":{"n":{"type":"integer"}}}`,
		"a property": `{"type":"object","required":["n"],"properties":{"n":{"type":"integer"},"$ref":{"const":"#/n"},"const":{"$ref":"#/properties/n"}}}`,
	} {
		s := compile(t, name, outputSchema(json.RawMessage(own)))
		for value, fits := range map[string]bool{
			`{"n": 1}`: true, `{"n": "x"}`: false, `{}`: false, `7`: false,
			`{"gem_pending": {"call_id": "c", "state": "queued", "message": "m"}}`:          true,
			`{"gem_large": {"call_id": "c", "bytes": 7, "beginning": "{", "message": "m"}}`: true,
			`{"gem_pending": {"call_id": "c"}}`:                                             false,
			`{"n": 1, "again": {"n": "x"}}`:                                                 name != "references",
			`{"n": 1, "const": "x"}`:                                                        name != "a property",
			`{"n": 1, "$ref": "#/n"}`:                                                       true,
			`{"n": 1, "$ref": "#/anyOf/0/n"}`:                                               name != "a property",
		} {
			var v any
			if err := json.Unmarshal([]byte(value), &v); err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(v); (err == nil) != fits {
				t.Errorf("%s: %s: %v, want fits %v", name, value, err, fits)
			}
		}
	}
}

func TestEveryInputSchemaIsOneOfAnObject(t *testing.T) {
	t.Parallel()
	for own, want := range map[string]string{
		`true`:                       `{"type":"object"}`,
		`false`:                      `{"not":{},"type":"object"}`,
		`{}`:                         `{"type":"object"}`,
		`{"required":["a"]}`:         `{"required":["a"],"type":"object"}`,
		`{"type":["object","null"]}`: `{"type":"object"}`,
	} {
		if got, keyed := inputSchema(json.RawMessage(own), false); string(got) != want || keyed {
			t.Errorf("%s: got %s", own, got)
		}
	}
	got, keyed := inputSchema(json.RawMessage(`{"additionalProperties":false,"properties":{"a":true}}`), true)
	s := compile(t, "key", got)
	if !keyed || s.Validate(map[string]any{"a": 1.0, "gem_key": "k"}) != nil ||
		s.Validate(map[string]any{"gem_key": ""}) == nil {
		t.Errorf("got %s", got)
	}
	if got, keyed := inputSchema(json.RawMessage(`{"properties":{"gem_key":{"type":"integer"}}}`), true); keyed ||
		!strings.Contains(string(got), "integer") {
		t.Errorf("a tool that has a gem_key: %s", got)
	}
}
