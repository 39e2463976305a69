package cli

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// exported has a tool for users, one that is closed to them, one whose input is not a plain object, and a question.
const exported = `{"version": "1.0.0", "tools": [
	{"name": "shop.order.place", "description": "Orders <an item>.", "permissions": ["write:db"], "idempotency": {"mode": "none"}, "timeout_ms": 1000, "output_schema": {},
	 "input_schema": {"type": "object", "required": ["item"], "properties": {"item": {"type": "string"}}}},
	{"name": "shop.mail", "permissions": ["send:email"], "idempotency": {"mode": "none"}, "timeout_ms": 1000, "output_schema": {},
	 "input_schema": {"properties": {"a": true, "b": true}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}},
	{"name": "stock.any", "idempotency": {"mode": "none"}, "timeout_ms": 1000, "output_schema": {}, "input_schema": true},
	{"name": "wait.event", "permissions": ["ask:people"], "frontends": true, "idempotency": {"mode": "none"}, "timeout_ms": 1000, "output_schema": {}, "input_schema": true}]}`

func TestToolsAreExportedAsAPIsTakeThem(t *testing.T) {
	t.Parallel()
	file := writeFile(t, exported)
	for _, c := range []struct{ args, want string }{
		{"--format openai --tools shop.order.*",
			`[{"type": "function", "name": "shop_order_place", "description": "Orders <an item>.", "strict": false,
			"parameters": {"type": "object", "required": ["item"], "properties": {"item": {"type": "string"}}}}]`},
		{"--format openai-chat --tools stock_any",
			`[{"type": "function", "function": {"name": "stock_any", "parameters": {"type": "object", "properties": {}}}}]`},
		{"--format anthropic --tools shop.mail",
			`[{"name": "shop_mail", "input_schema": {"type": "object", "properties": {"a": true, "b": true},
			"description": "(anyOf: [{\"required\":[\"a\"]},{\"required\":[\"b\"]}])"}}]`},
		{"--format anthropic --tools shop.mail --frontends", `[]`},
	} {
		got := gemWith(t, nil, append([]string{"registry", "export", file}, strings.Fields(c.args)...)...)
		got.wantCode(t, 0)
		var is, want any
		if err := json.Unmarshal([]byte(got.stdout), &is); err != nil {
			t.Fatalf("%s: %v", got.stdout, err)
		}
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, is); diff != "" {
			t.Errorf("%s: %s", c.args, diff)
		}
	}
}

func TestAnExportHasTheToolsThatAreAskedFor(t *testing.T) {
	t.Parallel()
	file := writeFile(t, exported)
	for args, want := range map[string]string{
		"--format anthropic":                                  "shop_mail shop_order_place stock_any",
		"--format openai --frontends":                         "shop_order_place stock_any",
		"--format openai-chat --tools shop.*,wait.event":      "shop_mail shop_order_place wait_event",
		"--format openai-chat --tools shop_mail --tools st*":  "shop_mail stock_any",
		"--format mcp":                                        "gem_cancel gem_result shop_order_place stock_any",
		"--format mcp --tools stock.* --frontends":            "gem_cancel gem_result stock_any",
		"--format mcp --tools shop.mail,wait.event,stock.any": "gem_cancel gem_result stock_any",
	} {
		got := gemWith(t, nil, append([]string{"registry", "export", file}, strings.Fields(args)...)...)
		got.wantCode(t, 0)
		var names []string
		for _, found := range regexp.MustCompile(`"name": "(\w+)"`).FindAllStringSubmatch(got.stdout, -1) {
			names = append(names, found[1])
		}
		if said := strings.Join(names, " "); said != want {
			t.Errorf("%s: got %s, want %s", args, said, want)
		}
		if mcp := strings.HasPrefix(got.stdout, "{\n  \"tools\": ["); mcp != strings.Contains(args, "mcp") {
			t.Errorf("%s: %s", args, got.stdout)
		}
	}
	for args, said := range map[string]string{
		"":                "--format must be one of anthropic, openai, openai-chat, mcp",
		"--format gemini": "--format must be one of",
		"--format openai --tools shop.ordr.place":    `the registry has no tool "shop.ordr.place": did you mean shop.order.place?`,
		"--format mcp --tools shop.ordr.place":       "did you mean shop.order.place?",
		"--format openai --tools [":                  "the registry has no tool",
		"--format openai --tools shop.mail,stock.*x": "the registry has no tool",
	} {
		got := gemWith(t, nil, append([]string{"registry", "export", file}, strings.Fields(args)...)...)
		got.wantCode(t, exitUsage)
		wants(t, got.stderr, said)
	}
}
