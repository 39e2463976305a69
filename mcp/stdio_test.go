package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// spoken returns a server's answers to lines, one by one.
func spoken(t testing.TB, d *Server, input string) (answers []map[string]any) {
	t.Helper()
	var out bytes.Buffer
	if err := d.ServeStdio(context.Background(), strings.NewReader(input), &out); err != nil {
		t.Errorf("the connection ended: %v", err)
	}
	for line := range strings.Lines(out.String()) {
		var answer map[string]any
		if err := json.Unmarshal([]byte(line), &answer); err != nil || answer["jsonrpc"] != "2.0" {
			t.Errorf("no message: %.300s: %v", line, err)
		}
		answers = append(answers, answer)
	}
	return answers
}

const hello = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n"

func TestWhatIsNoMessageIsAnsweredAndTheConnectionStays(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	for name, tc := range map[string]struct{ line, want string }{
		"no JSON":         {`hello`, `"code":-32700`},
		"half a message":  {`{"jsonrpc":"2.0","id":7,`, `"code":-32700`},
		"no message":      {`{"hello": 1}`, `"code":-32600`},
		"a call too deep": {`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"shop_order","arguments":{"item":` + deep + `}}}`, `nested 10003 levels deep`},
		"a list too deep": {`{"jsonrpc":"2.0","id":7,"method":"tools/list","params":` + deep + `}`, `"code":-32600`},
		"a call too long": {`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"shop_order","arguments":{"item":"` +
			strings.Repeat("x", 5<<20) + `"}},"id":7}`, `The call was not made: the message takes more than 4194304 bytes`},
		"no batch":            {`[]`, `"code":-32600`},
		"no batched message":  {`[1]`, `"code":-32600`},
		"a task without id":   {`{"jsonrpc":"2.0","id":7,"method":"tasks/get"}`, `"code":-32021`},
		"a task of null":      {`{"jsonrpc":"2.0","id":7,"method":"tasks/cancel","params":null}`, `"code":-32021`},
		"a call without name": {`{"jsonrpc":"2.0","id":7,"method":"tools/call"}`, `"error"`},
	} {
		answers := spoken(t, newShopServer(t, ""), hello+tc.line+"\n\n"+`{"jsonrpc":"2.0","id":"after","method":"ping"}`)
		byID := map[string]string{}
		for _, a := range answers {
			byID[fmt.Sprint(a["id"])] = string(encode(a))
		}
		id := "7"
		if strings.HasPrefix(name, "no ") {
			id = "<nil>"
		}
		if len(answers) != 3 || !strings.Contains(byID[id], tc.want) || byID["after"] == "" {
			t.Errorf("%s: got %.600v", name, byID)
		}
		if strings.HasPrefix(name, "a call too") && !strings.Contains(byID["7"], `"isError":true`) {
			t.Errorf("%s: no model reads %.600v", name, byID["7"])
		}
	}
	if answers := spoken(t, newShopServer(t, ""), hello+`{"jsonrpc":"2.0","method":"notifications/odd","params":`+deep+
		"}\n"); len(answers) != 1 {
		t.Errorf("a notification is answered: %v", answers)
	}
}

// TestAnOutlineIsThatOfTheMessage compares the outline of random messages with their decoded contents.
func TestAnOutlineIsThatOfTheMessage(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(16, 1))
	var value func(depth int) any
	value = func(depth int) any {
		switch n := r.IntN(7); {
		case n == 0 && depth > 0:
			return []any{value(depth - 1), value(depth - 1)}
		case n < 3 && depth > 0:
			return map[string]any{"id": value(depth - 1), `"}{][,:\`: value(depth - 1), "method": value(depth - 1)}
		case n < 5:
			return []string{`"`, `\`, `{"id":1}`, "tools/call", `x\"`, "]}"}[r.IntN(6)]
		}
		return r.IntN(1000)
	}
	var deep func(v any) int
	deep = func(v any) (most int) {
		switch v := v.(type) {
		case map[string]any:
			for _, sub := range v {
				most = max(most, deep(sub))
			}
		case []any:
			for _, sub := range v {
				most = max(most, deep(sub))
			}
		default:
			return 0
		}
		return most + 1
	}
	for range 2000 {
		message := map[string]any{"jsonrpc": "2.0", "params": value(4), "id": r.IntN(100),
			"method": []string{"tools/call", `a"b\`}[r.IntN(2)]}
		var encoded bytes.Buffer
		encoder := json.NewEncoder(&encoded)
		if r.IntN(2) == 0 {
			encoder.SetIndent(" ", "\t")
		}
		if err := encoder.Encode(message); err != nil {
			t.Fatal(err)
		}
		var o outline
		for whole := encoded.Bytes(); len(whole) > 0; {
			n := 1 + r.IntN(len(whole))
			o.read(whole[:n])
			whole = whole[n:]
		}
		if string(o.id) != fmt.Sprint(message["id"]) || o.method != message["method"] || o.deepest != deep(message) {
			t.Fatalf("%s: got %s, %s, %d, want depth %d", encoded.Bytes(), o.id, o.method, o.deepest, deep(message))
		}
	}
}

func TestTheEndOfStdinEndsTheRequestsAndNotTheCalls(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	in, send := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- o.server.ServeStdio(context.Background(), in, io.Discard) }()
	for _, line := range []string{hello, `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shop_hold"}}` + "\n"} {
		if _, err := io.WriteString(send, line); err != nil {
			t.Fatal(err)
		}
	}
	id := <-o.holds
	_ = send.Close()
	if err := <-done; err != nil {
		t.Errorf("it ended with %v", err)
	}
	close(o.release)
	if r := o.Await(id); r.Status != "succeeded" {
		t.Errorf("the call %s", r.Status)
	}
	o.count(1, "created_by = 'mcp'")
}

func TestASignalAnswersWhatWaits(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	in, send := io.Pipe()
	said, out := io.Pipe()
	ctx, signal := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- o.server.ServeStdio(ctx, in, out)
		_ = out.Close()
	}()
	go func() {
		for _, line := range []string{hello, `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n",
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shop_hold"}}` + "\n"} {
			_, _ = io.WriteString(send, line)
		}
	}()
	go func() {
		<-o.holds
		signal()
	}()
	all, _ := io.ReadAll(said)
	if err := <-done; err != nil || !strings.Contains(string(all), "gem_pending") {
		t.Errorf("got %s, %v", all, err)
	}
	_ = send.Close()
	close(o.release)
}

// Only one version of the protocol has batches, and the SDK closes the connection on those of others.
func TestTheMessagesOfABatchAreAnsweredOneByOne(t *testing.T) {
	t.Parallel()
	const anyNumber = -1 // the second of two equal ids may come while the first is open
	for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"} {
		for batch, want := range map[string]int{
			`[{"jsonrpc":"2.0","id":3,"method":"ping"}]`:                                                          1,
			`[{"jsonrpc":"2.0","id":3,"method":"ping"}, {"jsonrpc":"2.0","method":"notifications/roots"}]`:        1,
			`[{"jsonrpc":"2.0","id":3,"method":"ping"},{"jsonrpc":"2.0","id":4,"method":"ping"}]`:                 2,
			`[{"jsonrpc":"2.0","id":3,"method":"ping"},{"jsonrpc":"2.0","id":3,"method":"ping"}]`:                 anyNumber,
			`[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}]`:                    0,
			`[{"jsonrpc":"2.0","id":3,"method":"nope"},{"jsonrpc":"2.0","id":4,"method":"ping"}]`:                 2,
			`[{"jsonrpc":"2.0","id":3,"result":{}},{"jsonrpc":"2.0","id":4,"method":"tools/list"}]`:               1,
			`[{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"nope"}}, {"jsonrpc":"2.0","id":5}]`: 1,
		} {
			answers := spoken(t, newShopServer(t, ""), strings.ReplaceAll(hello, "2025-11-25", version)+batch+"\n"+
				`{"jsonrpc":"2.0","id":"after","method":"ping"}`)
			if len(answers) != want+2 && want != anyNumber || !strings.Contains(string(encode(answers)), `"id":"after"`) {
				t.Errorf("%s: %s: %d answers: %s", version, batch, len(answers), encode(answers))
			}
		}
	}
}
