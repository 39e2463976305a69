package mcpclient_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/backends/mcpclient"
	"github.com/gemworker/gem/registry"
)

// importing is a registry file, and what its imports said.
type importing struct {
	t    *testing.T
	file []byte
	said mcpclient.Import
}

// run imports tools, and returns what has changed.
func (im *importing) run(tools string, frontends bool) string {
	im.t.Helper()
	var listed []mcpclient.Tool
	if err := json.Unmarshal([]byte("["+tools+"]"), &listed); err != nil {
		im.t.Fatal(err)
	}
	entries, err := registry.Entries(im.file)
	if err != nil {
		im.t.Fatal(err)
	}
	im.said = mcpclient.NewImport(entries, "lab", listed, frontends)
	old := im.parse()
	if im.file, err = registry.Rewrite(im.file, registry.NextVersion(old.Version), im.said.Entries); err != nil {
		im.t.Fatal(err)
	}
	return strings.Join(registry.Compare(old, im.parse()), "; ")
}

func (im *importing) parse() *registry.Registry {
	im.t.Helper()
	r, err := registry.Parse(im.file)
	if err != nil {
		im.t.Fatalf("%v\n%s", err, im.file)
	}
	return r
}

func (im *importing) tool(name string) *registry.Tool {
	im.t.Helper()
	t, ok := im.parse().Tool(name)
	if !ok {
		im.t.Fatalf("there is no %s in\n%s", name, im.file)
	}
	return t
}

// edit changes the file by hand.
func (im *importing) edit(old, new string) {
	im.t.Helper()
	changed := strings.Replace(string(im.file), old, new, 1)
	if changed == string(im.file) {
		im.t.Fatalf("%q is not in\n%s", old, im.file)
	}
	im.file = []byte(changed)
}

func start(t *testing.T) *importing {
	return &importing{t: t, file: []byte(`{"version": "1.0.0", "tools": []}`)}
}

const (
	readTool = `{"name": "read-Item", "title": "Read", "description": "Reads <it>.", "inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
		"properties": {"id": {"type": "integer", "maximum": 9007199254740993}}}, "outputSchema": {"type": "object", "required": ["item"]}, "annotations": {"readOnlyHint": true, "destructiveHint": true}}`
	writeTool = `{"name": "write.item", "description": "Writes it.", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": false, "idempotentHint": true}}`
	plainTool = `{"name": "plain", "inputSchema": {"type": "object"}}`
)

func TestANewToolGetsTheServersContractAndIsClosed(t *testing.T) {
	t.Parallel()
	im := start(t)
	if got := im.run(readTool+","+writeTool+","+plainTool, false); got != "lab.plain was added; lab.read_item was "+
		"added; lab.write_item was added" {
		t.Fatal(got)
	}
	read, write, plain := im.tool("lab.read_item"), im.tool("lab.write_item"), im.tool("lab.plain")
	if !strings.Contains(string(read.InputSchema), "9007199254740993") ||
		!strings.Contains(string(read.OutputSchema), "item") || read.Description != "Reads <it>." {
		t.Errorf("%s", read.JSON())
	}
	for tool, want := range map[*registry.Tool]string{read: "[read:lab] safe-retry", write: "[write:lab] safe-retry",
		plain: "[write:lab] none"} {
		if got := fmt.Sprint(tool.Permissions, " ", tool.Idempotency.Mode); got != want || tool.Frontends {
			t.Errorf("%s: %s, want %s; open: %v", tool.Name, got, want, tool.Frontends)
		}
	}
	if read.Hints.Title != "Read" || read.Hints.Destructive != nil || write.Hints.Destructive == nil ||
		*write.Hints.Destructive || plain.Hints.Destructive != nil {
		t.Errorf("%+v %+v %+v", read.Hints, write.Hints, plain.Hints)
	}
	if faults := plain.ValidateOutput(json.RawMessage(`{"text": "x", "content": [{}]}`)); len(faults) > 0 {
		t.Error(faults)
	}
	open := start(t)
	open.run(plainTool, true)
	if !open.tool("lab.plain").Frontends {
		t.Error("it is closed")
	}
	// The permissions of a domain named db would open its tools.
	var tool mcpclient.Tool
	if err := json.Unmarshal([]byte(plainTool), &tool); err != nil {
		t.Fatal(err)
	}
	if entry := string(mcpclient.NewImport(nil, "db", []mcpclient.Tool{tool}, false).Entries[0]); !strings.Contains(entry,
		`"frontends":false`) {
		t.Error(entry)
	}
}

func TestASecondImportChangesWhatTheServerChangedAndKeepsHandEdits(t *testing.T) {
	t.Parallel()
	im := start(t)
	im.run(readTool+","+writeTool, false)
	once := string(im.file)
	if got := im.run(readTool+","+writeTool, false); got != "" || len(im.said.Entries) > 0 || len(im.said.Notes) > 0 {
		t.Errorf("the same again: %s, %+v", got, im.said)
	}
	if again := strings.Replace(string(im.file), `"1.2.0"`, `"1.1.0"`, 1); again != once {
		t.Errorf("the file is another:\n%s", again)
	}

	by := start(t)
	by.file = []byte(
		`{"version": "1", "tools": [{"name": "lab.plain", "description": "", "input_schema": {"type": "object", "maxProperties": 0}, "output_schema": {"type": "object"}, "permissions": ["write:lab"],
		"idempotency": {"mode": "none"}, "timeout_ms": 1000, "receipt_fields": []}]}`)
	by.run(plainTool, false)
	if len(by.said.Notes) != 2 || !strings.Contains(by.said.Notes[0],
		"lab.plain: its input_schema, which somebody wrote, is not the server's") {
		t.Errorf("an entry written by hand: %q", by.said.Notes)
	}

	im.edit(`"timeout_ms": 60000`, `"timeout_ms": 5000, "retry": {"max_attempts": 7}, "frontends": true`)
	im.edit(`"read:lab"`, `"read:db"`)
	im.edit(`"Reads <it>."`, `"Mine."`)
	if got := im.run(readTool+","+writeTool, false); got != "" {
		t.Errorf("an import of nothing new changed hand edits: %s", got)
	}
	changed := strings.Replace(strings.Replace(readTool, `"type": "integer"`, `"type": "number"`, 1), "Reads <it>.",
		"Reads more.", 1)
	if got := im.run(changed+","+writeTool, false); got != "lab.read_item was changed (input_schema, x-import)" {
		t.Error(got)
	}
	read := im.tool("lab.read_item")
	if read.Description != "Mine." || read.Timeout.Seconds() != 5 || read.Retry(true).MaxAttempts != 7 ||
		!read.Frontends || read.Permissions[0] != "read:db" {
		t.Errorf("%s", read.JSON())
	}
	if len(im.said.Notes) != 1 || !strings.Contains(im.said.Notes[0], "description") {
		t.Errorf("%q", im.said.Notes)
	}
	// The server no longer says that it only reads: where nobody decided otherwise, neither does the entry.
	if got := im.run(changed+","+strings.Replace(writeTool, `"idempotentHint": true`, `"idempotentHint": false`, 1),
		false); got != "lab.write_item was changed (idempotency, x-import)" {
		t.Error(got)
	}
	if mode := im.tool("lab.write_item").Idempotency.Mode; mode != registry.None {
		t.Errorf("it is %s", mode)
	}
	// A tool that is gone is reported.
	if got := im.run(changed, false); got != "" || len(im.said.Notes) != 1 ||
		!strings.HasPrefix(im.said.Notes[0], "lab.write_item: the server has no such tool") {
		t.Errorf("%s; %q", got, im.said.Notes)
	}
}

func TestAHostileServerIsRefusedInAFewLines(t *testing.T) {
	t.Parallel()
	tool := func(name, schema string) string {
		quoted, _ := json.Marshal(name)
		return fmt.Sprintf(`{"name": %s, "inputSchema": %s}`, quoted, schema)
	}
	im := start(t)
	got := im.run(strings.Join([]string{
		tool("array", `{"type": "array"}`),
		tool("deep", strings.Repeat(`{"not":`, 300)+"{}"+strings.Repeat("}", 300)),
		tool("huge", `{"description": "`+strings.Repeat("x", 300<<10)+`"}`),
		tool("ref", `{"$ref": "file:///etc/passwd"}`),
		tool("number", `{"maximum": 1e10000000}`),
		tool("faults", `{"properties": {"a": {"type": 1}, "b": {"type": 1}, "c": {"type": 1}, "d": {"type": 1}, "e": {"type": 1}}}`),
		tool("same-name", `{}`), tool("same_name", `{}`), tool("sameName", `{}`),
		tool("日本", `{}`), tool("evil\n\x1b[31mname", `{"type": "array"}`), tool(strings.Repeat("long", 50), `{}`),
		tool("2nd", `{}`), tool("XMLHttpRequest", `{}`),
		`{"name": "loose", "inputSchema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)", "widget": "box", "x-y": 1}}, "nullable": true}}`,
	}, ","), false)
	if got != "lab.loose was added; lab.tool_2nd was added; lab.xml_http_request was added" {
		t.Errorf("%s\n%s", got, strings.Join(im.said.Refused, "\n"))
	}
	if len(im.said.Refused) != 12 {
		t.Errorf("%d are refused", len(im.said.Refused))
	}
	for _, line := range slices.Concat(im.said.Refused, im.said.Notes) {
		if len(line) > 2000 || strings.ContainsAny(line, "\n\x1b") {
			t.Errorf("%d bytes: %q", len(line), line[:min(len(line), 300)])
		}
	}
	loose := string(im.tool("lab.loose").InputSchema)
	for _, want := range []string{`"x-pattern":"(?=x)"`, `"x-widget":"box"`, `"x-y":1`, `"x-nullable":true`} {
		if !strings.Contains(loose, want) {
			t.Errorf("%s is not in %s", want, loose)
		}
	}
	if got := im.run(
		`{"name": "loose", "inputSchema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)", "widget": "box", "x-y": 1}}, "nullable": true}}`, false); got != "" {
		t.Errorf("the same again: %s", got)
	}
}
