package mcpclient_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/backends/mcpclient"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/testing/testdb"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// called is a request as fakes read it.
type called struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Name      string
		Arguments struct{ Say string }
	}
}

const fine = `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"done"}]}}`

// sayer is a program that answers a call with its argument, in which ID is replaced by the call's id. It
// answers a call that says nothing after the next one.
func sayer() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	var held json.RawMessage
	say := func(text string, id json.RawMessage) {
		fmt.Println(strings.ReplaceAll(strings.ReplaceAll(text, "ID", string(id)), "LARGE", strings.Repeat("x", 17<<20)))
	}
	fmt.Println("listening on stdin")
	for in.Scan() {
		var m called
		switch _ = json.Unmarshal(in.Bytes(), &m); {
		case m.Method == "initialize":
			say(`{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"0"}}}`, m.ID)
		case m.Method == "tools/list":
			say(`{"jsonrpc":"2.0","id":ID,"result":{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}}`, m.ID)
		case m.Method == "tools/call" && m.Params.Arguments.Say == "":
			held = m.ID
			fmt.Fprintln(os.Stderr, "held")
		case m.Method == "tools/call":
			say(m.Params.Arguments.Say, m.ID)
			if held != nil {
				say(fine, held)
				held = nil
			}
		case m.ID != nil:
			say(`{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}`, m.ID)
		}
	}
}

// answersWith is a server at a URL that answers a call with what its argument says, of a content type and with a
// status, and a call that says nothing after the next one.
func answersWith(t *testing.T, status int, kind string, held chan struct{}) backends.Server {
	t.Helper()
	next := make(chan struct{})
	return reached(t, &sdk.StreamableHTTPOptions{Stateless: true},
		func(w http.ResponseWriter, r *http.Request, rest http.Handler) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			var m called
			if _ = json.Unmarshal(body, &m); m.Method != "tools/call" {
				rest.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", kind)
			if m.Params.Arguments.Say == "" {
				w.Header().Set("Content-Type", "application/json")
				held <- struct{}{}
				<-next
				_, _ = io.WriteString(w, strings.ReplaceAll(fine, "ID", string(m.ID)))
				return
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.ReplaceAll(m.Params.Arguments.Say, "ID", string(m.ID)))
			next <- struct{}{}
		})
}

// How a call ends whose server says something odd.
const (
	succeeds = "succeeds"
	unknown  = "outcome_unknown"
	refused  = "refused"
)

func endsAs(err error) string {
	failure := (*handlers.Failure)(nil)
	switch {
	case err == nil:
		return succeeds
	case outcomeUnknown(err):
		return unknown
	case errors.As(err, &failure) && failure.Code == "" && !errors.As(err, new(*handlers.TransientError)):
		return refused
	}
	return err.Error()
}

func say(text string) string {
	encoded, _ := json.Marshal(map[string]string{"say": text})
	return string(encoded)
}

// besideANeighbour makes a call that says nothing, and once it is in flight one that says a text, and checks how both
// end.
func besideANeighbour(t *testing.T, p *backend, tool, text, want string, held func()) {
	t.Helper()
	neighbour := p.start(t.Context(), tool, `{}`)
	held()
	if _, err := p.run(t.Context(), tool, say(text)); endsAs(err) != want {
		t.Errorf("the call ended as %s, want %s: %v", endsAs(err), want, err)
	}
	if err := <-neighbour; err != nil {
		t.Errorf("its neighbour: %v", err)
	}
	if n := p.logs.FilterMessage("the connection to the MCP server has ended").Len(); n > 0 {
		t.Error("the connection ended")
	}
}

func TestABadLineEndsAtMostItsOwnCall(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text, want string
		skipped    int
	}{
		"a line of a log": {"12:00 INFO handling a call\n" + fine, succeeds, 2},
		"empty lines":     {"\n\r\n" + fine, succeeds, 1},
		"an error of no request": {`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid"}}` +
			"\n" + fine, succeeds, 2},
		"an answer to nothing":    {`{"jsonrpc":"2.0","result":{}}` + "\n" + fine, succeeds, 2},
		"JSON that is no message": {`[1, "a", {"level": "info"}]` + "\n" + fine, succeeds, 4},
		"an answer to a call that is not": {`{"jsonrpc":"2.0","id":9999,"error":{"code":-32600,"message":"invalid"}}` +
			"\n" + fine, succeeds, 1},
		"ids that no request has": {`{"id":true,"level":"info"}` + "\n" +
			`{"jsonrpc":"2.0","id":1e400,"result":{}}` + "\n" + fine, succeeds, 3},
		"an id that is no integer": {`{"jsonrpc":"2.0","id":ID.7,"result":{"content":[]}}` + "\n" +
			`{"jsonrpc":"2.0","id":ID.5,"error":{"code":1,"message":"no"}}` + "\n" + `{"jsonrpc":"2.0","id":ID.7}` + "\n" + fine,
			succeeds, 4},
		"a batch":                                    {"[" + fine + "]", succeeds, 1},
		"its answer, with the id as a text":          {`{"jsonrpc":"2.0","result":{"content":[]},"id":"ID"}`, succeeds, 1},
		"its answer, cut off, with the id as a text": {`{"jsonrpc":"2.0","id":"ID","result":{"content":[`, unknown, 1},
		"a line of a log that is too long":           {"LARGE\n" + fine, succeeds, 2},
		"a notification that is too long": {`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"LARGE"}}` +
			"\n" + fine, succeeds, 2},
		"its answer, too long":                {`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"LARGE"}]}}`, unknown, 2},
		"its answer, cut off":                 {`{"jsonrpc":"2.0","id":ID,"result":{"content":[`, unknown, 1},
		"its answer, of no version":           {`{"id":ID,"result":{"content":[]}}` + "\n" + fine, succeeds, 2},
		"its answer, with an error of text":   {`{"jsonrpc":"2.0","id":ID,"error":"it broke"}`, unknown, 1},
		"its answer, with something after it": {fine + " and more", unknown, 1},
		"a refusal of its own": {`{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"invalid"}}`,
			refused, 1},
		"a refusal with a code of the SDK's": {`{"jsonrpc":"2.0","id":ID,"error":{"code":-32002,"message":"no such file"}}`,
			refused, 1},
		"its answer, with the result null":  {`{"jsonrpc":"2.0","id":ID,"result":null}`, unknown, 1},
		"its answer, with a list as result": {`{"jsonrpc":"2.0","id":ID,"result":[1]}`, unknown, 1},
		"its answer, with a text as result": {`{"jsonrpc":"2.0","id":ID,"result":"done"}`, unknown, 1},
		"its answer, with odd content":      {`{"jsonrpc":"2.0","id":ID,"result":{"content":"done"}}`, unknown, 1},
		"its answer, with no result":        {`{"jsonrpc":"2.0","id":ID}`, unknown, 1},
		"a refusal with the SDK's code -32001": {`{"jsonrpc":"2.0","id":ID,"error":{"code":-32001,"message":"no"}}`, refused,
			1},
		"a refusal with the SDK's code -32003": {`{"jsonrpc":"2.0","id":ID,"error":{"code":-32003,"message":"no"}}`, refused,
			1},
		"a refusal with the SDK's code -32004": {`{"jsonrpc":"2.0","id":ID,"error":{"code":-32004,"message":"no"}}`, refused,
			1},
		"a refusal with the SDK's code -32005": {`{"jsonrpc":"2.0","id":ID,"error":{"code":-32005,"message":"no"}}`, refused,
			1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			saysBesideANeighbour(t, test.text, test.want, test.skipped)
		})
	}
}

// saysBesideANeighbour has a program say a text in answer to a call, and checks how many of its lines are skipped.
func saysBesideANeighbour(t *testing.T, text, want string, skipped int) {
	t.Helper()
	p := open(t, started("sayer"), nil)
	besideANeighbour(t, p, "do", text, want, func() {
		testdb.Eventually(t, "the neighbour to be in flight", func() bool {
			return p.logs.FilterMessage("the MCP server says").Len() > 0
		})
	})
	said := p.logs.FilterMessageSnippet("not a message: skipped it")
	if said.Len() != skipped {
		t.Errorf("%d lines were skipped and logged, want %d", said.Len(), skipped)
	}
	for _, entry := range said.All() {
		if line, shown := entry.ContextMap()["line"]; shown {
			t.Errorf("the log has the contents of a line: %v", line)
		}
	}
}

func TestALogLineWithTheIDOfARequestEndsNoCall(t *testing.T) {
	t.Parallel()
	all := ""
	for id := range 8 { // the most that may be in flight
		all += fmt.Sprintf(`{"level":"info","id":%d,"msg":"still working","result":"soon"}`+"\n", id)
	}
	for name, test := range map[string]struct {
		text, want string
		skipped    int
	}{
		"a line of a log":                    {`{"level":"info","id":ID,"msg":"handling"}` + "\n" + fine, succeeds, 2},
		"an error of a log":                  {`{"level":"warn","id":ID,"error":"no"}` + "\n" + fine, succeeds, 2},
		"a line of the version":              {`{"jsonrpc":"2.0","id":ID,"level":"info"}` + "\n" + fine, succeeds, 2},
		"a line for each id":                 {all + fine, succeeds, 9},
		"a result of a log":                  {`{"id":ID,"result":{"rows":3}}` + "\n" + fine, succeeds, 2},
		"an error of a log with a code":      {`{"id":ID,"error":{"code":-32000,"message":"no"}}` + "\n" + fine, succeeds, 2},
		"another version":                    {`{"jsonrpc":"1.0","id":ID,"result":{}}` + "\n" + fine, succeeds, 2},
		"its answer, of no version, cut off": {`{"id":ID,"error":{"code":` + "\n" + fine, succeeds, 2},
		"its answer, and nothing in it":      {`{"jsonrpc":"2.0","id":ID}`, unknown, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			saysBesideANeighbour(t, test.text, test.want, test.skipped)
		})
	}
}

func TestABadAnswerOverHTTPEndsAtMostItsOwnCall(t *testing.T) {
	t.Parallel()
	const plain, stream = "application/json", "text/event-stream"
	event := func(data string) string { return "data: " + data + "\n\n" }
	for name, test := range map[string]struct {
		status           int
		kind, text, want string
	}{
		"no JSON": {200, plain, "hello", unknown},
		"nothing": {200, plain, " ", unknown},
		"cut off": {200, plain, `{"jsonrpc":"2.0","id":ID,"result":{`, unknown},
		"an error of no request": {200, plain,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid"}}`, unknown},
		"an error of another request": {200, plain,
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"invalid"}}`, unknown},
		"an answer of no version":     {200, plain, `{"id":ID,"result":{"content":[]}}`, unknown},
		"a status with a result":      {404, plain, fine, unknown},
		"a bad request with a result": {400, plain, fine, unknown},
		"a page":                      {200, "text/html", "<h1>It works</h1>", unknown},
		"a refusal of its own": {200, plain,
			`{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"invalid"}}`, refused},
		"a status": {400, "text/plain", "bad request", refused},
		"a status with an error of none": {400, plain,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"invalid"}}`, refused},
		"a status with its own refusal": {400, plain,
			`{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"invalid"}}`, refused},
		"a status with a code of the SDK's": {400, plain, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32004,"message":"no"}}`,
			refused},
		"a refusal with a code of the SDK's": {200, plain, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32003,"message":"no"}}`,
			refused},
		"the result null":                    {200, plain, `{"jsonrpc":"2.0","id":ID,"result":null}`, unknown},
		"a status that says it is not there": {404, "text/plain", "not found", refused},
		"an event that is no message":        {200, stream, event("hello") + event(fine), succeeds},
		"an event of no request": {200, stream,
			event(`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}`) + event(fine), succeeds},
		"an event with an odd id": {200, stream, event(`{"jsonrpc":"2.0","id":false,"result":{}}`) + event(fine),
			succeeds},
		"a line that is no field": {200, stream, "hello\n" + event(fine), succeeds},
		"an answer over several lines": {200, stream,
			"event: message\ndata: " + strings.ReplaceAll(fine, `"result"`, "\ndata: \"result\"") + "\n\n", succeeds},
		"an event cut off":                  {200, stream, event(`{"jsonrpc":"2.0","id":ID,"result":{`), unknown},
		"a stream without an answer":        {200, stream, ": nothing\n\n", unknown},
		"a choice":                          {300, "text/plain", "there are two", refused},
		"a redirect to nowhere":             {302, "text/plain", "elsewhere", refused},
		"a page that has not changed":       {304, "text/plain", "x", refused},
		"a proxy to use":                    {305, "text/plain", "x", refused},
		"another protocol":                  {101, "text/plain", "x", unknown},
		"its answer, with its id as a text": {200, plain, strings.Replace(fine, "ID", `"ID"`, 1), succeeds},
		"a stream to resume":                {200, stream, "id: 7\nretry: 1\ndata:\n\n", unknown},
		"an event with an id":               {200, stream, "id: 7\n" + event(`{"jsonrpc":"2.0","method":"m"}`), unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			held := make(chan struct{}, 10)
			p := open(t, answersWith(t, test.status, test.kind, held), nil)
			besideANeighbour(t, p, "slow", test.text, test.want, func() { <-held })
		})
	}
}

func TestAListOfManyMessagesIsNotTakenApart(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][2]int{2: {2, 0}, 1000: {1000, 0}, 1001: {0, 1}, 100_000: {0, 1}} {
		text := "[" + strings.TrimSuffix(strings.Repeat(`{"jsonrpc":"2.0","id":1,"result":{}},`, n), ",") + "]"
		if messages, skipped := mcpclient.Readable([]byte(text)); messages != want[0] || skipped != want[1] {
			t.Errorf("%d messages: %d are read, %d parts skipped", n, messages, skipped)
		}
	}
}
