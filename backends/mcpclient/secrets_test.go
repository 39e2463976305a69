package mcpclient_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/internal/testing/testdb"
)

const (
	planted   = "abc+def/0123456789+PLANTED+abcdefghijklmnopqrstuvwxyz"
	part      = "abc+def/0" // of it, as no output and no log may have it
	handshake = `{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},` +
		`"serverInfo":{"name":"f","version":"0"}}}`
	oneTool = `{"jsonrpc":"2.0","id":ID,"result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}}`
)

// shows reports whether a text has a part of the secret, escaped or not.
func shows(text string) bool {
	for _, escape := range []string{`\\u002b`, `\u002b`, `%2b`} {
		text = strings.ReplaceAll(strings.ToLower(text), escape, "+")
	}
	return strings.Contains(strings.ReplaceAll(text, "%2f", "/"), part)
}

// A server that echoes its credentials wherever it can.
func TestASecretThatAServerRepeatsIsShownNowhere(t *testing.T) {
	t.Parallel()
	escaped := strings.ReplaceAll(planted, "+", `\u002B`)
	twice := strings.ReplaceAll(planted, "+", `\\u002B`)
	answer := func(result string) string { return `{"jsonrpc":"2.0","id":ID,"result":` + result + `}` }
	for name, c := range map[string]struct {
		initialize, list, call string
		status                 int
	}{
		"a result":           {call: answer(`{"content":[{"type":"text","text":"Bearer ` + escaped + `"}]}`)},
		"JSON in a result":   {call: answer(`{"content":[{"type":"text","text":"{\"t\":\"` + twice + `\"}"}]}`)},
		"structured content": {call: answer(`{"content":[],"structuredContent":{"h":"` + escaped + `"}}`)},
		"an error of a tool": {call: answer(`{"isError":true,"content":[{"type":"text","text":"` + escaped + `"}]}`)},
		"an error":           {call: `{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"` + escaped + `"}}`},
		"an odd result":      {call: answer(`{"_meta":"` + planted + `","tools":"` + planted + `","nextCursor":5}`)},
		"a status":           {call: `{"error":"` + escaped + `"}`, status: 400},
		"a long status":      {call: strings.Repeat(" ", 1945) + planted, status: 500},
		"a longer status":    {call: strings.Repeat(" ", 64<<10-20) + planted, status: 500},
		"its name": {initialize: strings.NewReplacer(`"f"`, `"`+planted+`"`, `"0"`, `"`+escaped+`"`).
			Replace(handshake)},
		"its version":         {initialize: strings.Replace(handshake, "2025-06-18", planted, 1)},
		"its capabilities":    {initialize: strings.Replace(handshake, `{"tools":{}}`, `{"tools":"`+planted+`"}`, 1)},
		"no initialization":   {initialize: answer(`"` + planted + `"`)},
		"a refusal to start":  {initialize: `{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"` + escaped + `"}}`},
		"the name of a tool":  {list: strings.Replace(oneTool, "echo", "echo-"+planted, 1)},
		"a description":       {list: strings.Replace(oneTool, `"echo"`, `"echo","description":"`+escaped+`"`, 1)},
		"no list":             {list: answer(`{"tools":"` + planted + `"}`)},
		"a tool of odd shape": {list: answer(`{"tools":[{"name":{"` + planted + `":1},"inputSchema":5}]}`)},
		"an odd cursor":       {list: strings.Replace(oneTool, `"tools"`, `"nextCursor":{"x":"`+planted+`"},"tools"`, 1)},
		"an odd time to live": {list: strings.Replace(oneTool, `"tools"`, `"ttlMs":"`+planted+`","tools"`, 1)},
		"no start":            {initialize: strings.Repeat(" ", 1990) + planted, status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := reached(t, nil, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				var m called
				_ = json.Unmarshal(body, &m)
				text, special := "", ""
				switch m.Method {
				case "initialize":
					text, special = handshake, c.initialize
				case "tools/list":
					text, special = oneTool, c.list
				case "tools/call":
					text, special = fine, c.call
				default:
					if m.ID == nil {
						w.WriteHeader(http.StatusAccepted)
						return
					}
					text = `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}`
				}
				w.Header().Set("Content-Type", "application/json")
				if special != "" {
					if text = special; c.status > 0 {
						w.WriteHeader(c.status)
					}
				}
				_, _ = io.WriteString(w, strings.ReplaceAll(text, "ID", string(m.ID)))
			})
			settings.HeaderEnv = map[string]string{"Authorization": "TOKEN"}
			p := open(t, settings, map[string]string{"TOKEN": planted})
			output, err := p.run(t.Context(), "echo", `{}`)
			tools, listErr := p.Tools(t.Context(), "lab")
			imported, _ := json.Marshal(tools)
			if all := fmt.Sprint(output, err, listErr, string(imported)); shows(all) {
				t.Errorf("it is shown: %s", all)
			}
			for _, line := range p.logs.All() {
				if text := fmt.Sprint(line.Message, line.ContextMap()); shows(text) {
					t.Errorf("the log has %s", text)
				}
			}
		})
	}
}

func TestASecretAtTheEndOfALongLineIsShownNowhere(t *testing.T) {
	t.Parallel()
	p := open(t, backends.Server{Command: "sh", Args: []string{"-c", `for n in 1950 65500; do
		printf "%${n}s%s\n" "" "$SECRET"; printf "%${n}s%s\n" "" "$SECRET" >&2; done; echo end >&2`},
		Env: []string{"SECRET"}}, map[string]string{"SECRET": planted})
	_, _ = p.run(t.Context(), "echo", `{}`)
	testdb.Eventually(t, "its last line", func() bool {
		said := p.logs.FilterMessage("the MCP server says").All()
		return len(said) > 0 && said[len(said)-1].ContextMap()["line"] == "end"
	})
	for _, line := range p.logs.All() {
		if text := fmt.Sprint(line.Message, line.ContextMap()); shows(text) {
			t.Errorf("the log has %s", text)
		}
	}
}
