package dashboard_test

import (
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

// wants is a turn of the model with calls to tools.
func wants(namesAndArguments ...string) (turn llmtest.Script) {
	turn.Parts = append(turn.Parts, provider.Part{Type: provider.Text, Text: "I look: " + hostile})
	for i := 0; i < len(namesAndArguments); i += 2 {
		turn.Parts = append(turn.Parts, provider.Part{Type: provider.ToolCall, ID: fmt.Sprintf("id_%d", i/2+1),
			Name:      namesAndArguments[i],
			Arguments: json.RawMessage(namesAndArguments[i+1])})
	}
	return turn
}

func TestASessionShowsAnAgentsTurns(t *testing.T) {
	t.Parallel()
	s := start(t, llmtest.Options{})
	session := "../a//b?c#d%2F " + hostile
	s.model.Script("", wants("os_search_notes", `{"query": "roof 12345678901234567890.123"}`, "shell_run",
		`{"command": "rm"}`),
		wants("os_create_note", `{"domain": "business", "title": "`+strings.ReplaceAll(hostile, `"`, `\"`)+
			`", "content": "c"}`),
		llmtest.Say("All done: "+hostile))
	input, _ := json.Marshal(object{"task": "Look at " + hostile, "tools": []string{"os.search_notes", "os.create_note"}})
	r := s.Run(handlertest.Call{Tool: "agent.run", Input: string(input), CreatedBy: "ada" + hostile, Session: session})
	if r.Status != "succeeded" {
		t.Fatalf("%s: %s", r.Status, r.Result)
	}
	s.Run(handlertest.Call{Tool: "nothing.there", Input: `{}`, Session: session})
	s.execute(t, "select gem.hook_record('claude-code', $1, 'u1', 'PostToolUse', '[{\"kind\": \"edit\", \"path\": "+
		"\"/src/<b>roof.go\"}]')", session)

	path := "/sessions?id=" + url.QueryEscape(session)
	body := shows(t, s.operator, path, 200, []string{"<strong>4</strong> calls", "<strong>1</strong> failed",
		"turn 1</strong>", "turn 3</strong>", "turn 1 call 1", "turn 2 call 1",
		"model-a", "says</span> All done: &lt;script&gt;", "turn 1 call 2 was not made", "unknown_tool",
		"12345678901234567890.123", "/conversation", "/src/&lt;b&gt;roof.go",
		"nothing.there"})
	order := regexp.MustCompile(
		`turn 1</strong>|turn 1 call 1|turn 2</strong>|turn 2 call 1|turn 3</strong>|>nothing\.there<`).FindAllString(body,
		-1)
	if got := strings.Join(order, " "); got != "turn 1</strong> turn 1 call 1 turn 2</strong> turn 2 call 1 turn "+
		"3</strong> >nothing.there<" {
		t.Errorf("the order: %s", got)
	}
	shows(t, s.viewer, path, 200, []string{"<strong>4</strong> calls", "turn 3</strong>", "tokens in",
		"turn 1 call 2 was not made", "Only operators see"},
		"All done", "roof 1234", "I look", "/src/")

	conversation := "/calls/" + r.CallID + "/conversation"
	shows(t, s.operator, conversation, 200, []string{"Turn 1", "Turn 3", "<strong>3</strong> turns",
		"Look at &lt;script&gt;", "I look: &lt;script&gt;", "not made", "shell_run",
		"The answer", "All done: &lt;script&gt;", "roof 12345678901234567890.123"})
	shows(t, s.operator, conversation+"?from=2", 200, []string{"Turn 2", "Earlier turns"}, "<h2 id=\"turn1\">")
	shows(t, s.viewer, conversation, 200, []string{"Turn 3", "Only operators see", "os.create_note"}, "All done",
		"Look at", "I look", "roof 1234")
	shows(t, s.operator, "/calls/0190a000-0000-7005-8000-000000000000/conversation", 404,
		[]string{"This call does not exist"})
	shows(t, s.operator, "/calls/x/conversation", 404, nil)

	var page struct {
		Total int
		Calls []struct{ ID, Tool string }
		Turns []struct{ Label string }
	}
	_, list := get(t, s.viewer, "/sessions.json?id="+url.QueryEscape(session))
	if err := json.Unmarshal([]byte(list), &page); err != nil || page.Total != 4 || len(page.Calls) != 4 ||
		len(page.Turns) != 3 {
		t.Errorf("%v: %s", err, list)
	}
	recent := shows(t, s.operator, "/sessions", 200, nil)
	shows(t, s.operator, html.UnescapeString(regexp.MustCompile(`href="(/sessions\?id=[^"]+)"`).
		FindStringSubmatch(recent)[1]), 200, []string{"<strong>4</strong> calls"})
	shows(t, s.operator, "/sessions/a/b", 404, []string{"No call has this session"}) // which leads to /sessions?id=a/b
	shows(t, s.operator, "/sessions?id=%00%ff", 404, nil)
}

func TestALongSessionHasPagesInTheOrderOfItsTree(t *testing.T) {
	t.Parallel()
	s := start(t, llmtest.Options{})
	// 300 calls: each third is made by the one before, whose own call is one more level down; the last repeats the first.
	s.execute(t, `insert into core_tool_calls (id, tool_name, session_id, parent_call_id, run_at)
		select ('0190a000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'x.n' || n, 's',
			case when n % 3 > 0 then ('0190a000-0000-7000-8000-' || lpad(to_hex(n - 1), 12, '0'))::uuid end,
				gem.now() + interval '1 hour'
		from generate_series(0, 299) n`)
	s.execute(t, `insert into core_tool_calls (tool_name, session_id, parent_call_id, run_at)
		values ('x.late', 's', '0190a000-0000-7000-8000-000000000000', gem.now() + interval '1 hour')`)
	var all []string
	next := ""
	for page := 0; page < 8; page++ {
		var p struct {
			Total, Open int
			Calls       []struct {
				Tool  string
				Depth int
			}
			Later, Earlier, End string
		}
		_, body := get(t, s.viewer, "/sessions.json?id=s&from="+next)
		if err := json.Unmarshal([]byte(body), &p); err != nil {
			t.Fatal(err, body)
		}
		if p.Total != 301 || p.Open != 301 || len(p.Calls) > 50 || (page > 0) != (p.Earlier != "") {
			t.Errorf("page %d: %d calls of %d, %d open", page, len(p.Calls), p.Total, p.Open)
		}
		for _, c := range p.Calls {
			all = append(all, fmt.Sprintf("%s %d", c.Tool, c.Depth))
		}
		if next = p.Later; next == "" {
			break
		}
	}
	if len(all) != 301 || strings.Join(all[:6], ", ") != "x.n0 0, x.n1 1, x.n2 2, x.late 1, x.n3 0, x.n4 1" {
		t.Errorf("%d calls: %v", len(all), all[:10])
	}
	shows(t, s.operator, "/sessions?id=s&from="+next, 200, []string{"301</strong> calls", "Later calls", "The last calls"},
		"Earlier calls")
	shows(t, s.operator, "/sessions?id=s&from=x", 404, []string{"no longer exists"})
}

func TestASessionOfHostileCallsStaysSmall(t *testing.T) {
	t.Parallel()
	s := start(t, llmtest.Options{})
	s.execute(t, `insert into core_tool_calls (tool_name, session_id, created_by, input, run_at)
		select repeat('"', 200), 'h', repeat('<', 255), jsonb_build_object('a', repeat('"<', 20000), 'b', $1::text),
			gem.now() + interval '1 hour' from generate_series(1, 60)`, hostile)
	s.execute(t, `insert into core_tool_calls (tool_name, session_id, input) select '<script>alert(1)</script>', 'h',
		jsonb_build_object('b', $1::text) from generate_series(1, 10)`, hostile)
	shows(t, s.operator, "/sessions?id=h", 200, []string{"<strong>70</strong> calls"})
	shows(t, s.operator, "/sessions", 200, nil)
}

// The title of a live page is set from an attribute, which must not reverse text either.
func TestASessionsNameIsTextInTheTitleToo(t *testing.T) {
	t.Parallel()
	server, db := with(t, viewer)
	made(t, db, client.NewCall{Tool: "mail.send", SessionID: "a\u202eb"})
	shows(t, server, "/sessions?id=a%E2%80%AEb", 200, []string{`data-title="Session a` + "\ufffd" + `b: in progress"`})
}
