package mcpclient_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/backends/mcpclient"
	"github.com/gemworker/gem/internal/testing/testdb"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestMain is also the program of a server, where the first argument says so.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "mcp-server" {
		program(os.Args[2])
		return
	}
	secure := httptest.NewTLSServer(nil) // all of them have the same certificate
	mcpclient.Trust(secure.Certificate())
	secure.Close()
	testdb.Main(m)
}

// program is a server over stdin and stdout, or something that only looks like one.
func program(how string) {
	switch how {
	case "deaf": // it reads nothing and says nothing
		select {}
	case "mute": // it reads, and never answers
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "stubborn": // it ends by force alone, and leaves another process behind, which holds its output
		child := exec.Command("sleep", "300")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		_ = child.Start()
		signal.Ignore(syscall.SIGTERM)
		fmt.Fprintln(os.Stderr, "sleeper", child.Process.Pid)
		_ = newServer().Run(context.Background(), &sdk.StdioTransport{})
		select {}
	case "broken":
		fmt.Println("hello, this is no MCP")
	case "chatty":
		for i := range 200 {
			fmt.Fprintf(os.Stderr, "line %d: %s %s\n", i, os.Getenv("SECRET"), strings.Repeat("x", 3000))
		}
		_ = newServer().Run(context.Background(), &sdk.StdioTransport{})
	case "sayer":
		sayer()
	case "busy":
		busy()
	case "asker", "flood", "many", "large", "pings":
		fake(how)
	default:
		_ = newServer().Run(context.Background(), &sdk.StdioTransport{})
	}
}

// fake is a server that keeps to no rules. All of its tools do the same.
func fake(how string) {
	in := json.NewDecoder(os.Stdin)
	asking := json.RawMessage(nil) // the call for which something is asked
	for {
		var m struct {
			ID     json.RawMessage
			Method string
			Error  struct{ Message string }
		}
		if in.Decode(&m) != nil {
			return
		}
		answer := func(id json.RawMessage, result string) {
			fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", id, result)
		}
		switch {
		case m.Method == "initialize":
			answer(m.ID, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"0"}}`)
		case m.Method == "tools/list" && how == "many":
			answer(m.ID, `{"tools":[{"name":"a","inputSchema":{"type":"object"}}],"nextCursor":"more"}`)
		case m.Method == "tools/list" && how == "large":
			answer(m.ID, `{"tools":[{"name":"a","description":"`+strings.Repeat("x", 6<<20)+
				`","inputSchema":{"type":"object"}}],"nextCursor":"more"}`)
		case m.Method == "tools/list":
			answer(m.ID, `{"tools":[{"name":"do","inputSchema":{"type":"object"}},null,{}]}`)
		case m.Method == "tools/call" && how == "flood":
			block := strings.Repeat("x", 1<<20)
			for range 40 {
				if _, err := fmt.Print(block); err != nil {
					return
				}
			}
		case m.Method == "tools/call" && how == "pings":
			for n := 0; ; n++ { // it reads no answer, and so it must ask without end
				if _, err := fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":\"p%d\",\"method\":\"ping\"}\n", n); err != nil {
					return
				}
			}
		case m.Method == "tools/call":
			asking = m.ID
			fmt.Println(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"sure?","requestedSchema":{"type":"object","properties":{}}}}`)
		case m.Method == "" && asking != nil:
			text, _ := json.Marshal("I heard: " + m.Error.Message)
			answer(asking, `{"content":[{"type":"text","text":`+string(text)+`},{"type":"hologram"}],"isError":true}`)
		case m.ID != nil:
			fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":{\"code\":-32601,\"message\":\"no\"}}\n", m.ID)
		}
	}
}

// newServer is a server whose tools do one thing each. The tools began and cancelled wait until hangs has begun, or was
// cancelled.
func newServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1.2.3"}, nil)
	var calls atomic.Int64
	began, cancelled := make(chan string, 100), make(chan string, 100)
	add := func(name string, f func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error),
		change ...func(*sdk.Tool)) {
		t := &sdk.Tool{Name: name, Description: "It is " + name + ".", InputSchema: json.RawMessage(`{"type": "object"}`)}
		for _, c := range change {
			c(t)
		}
		s.AddTool(t, f)
	}
	structured := func(t *sdk.Tool) { t.OutputSchema = json.RawMessage(`{"type": "object"}`) }
	text := func(texts ...string) (*sdk.CallToolResult, error) {
		r := &sdk.CallToolResult{}
		for _, t := range texts {
			r.Content = append(r.Content, &sdk.TextContent{Text: t})
		}
		return r, nil
	}
	add("echo", func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{StructuredContent: req.Params.Arguments,
			Content: []sdk.Content{&sdk.TextContent{Text: "{}"}}}, nil
	}, structured)
	add("list", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{StructuredContent: json.RawMessage(`[1]`),
			Content: []sdk.Content{&sdk.TextContent{Text: "[1]"}}}, nil
	})
	add("say-Hello.world", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return text("hello", "world")
	})
	add("nothing", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return text() })
	add("picture", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "see"},
			&sdk.ImageContent{MIMEType: "image/png", Data: []byte("png")},
			&sdk.ResourceLink{URI: "file:///a", Name: "a"}}}, nil
	})
	add("large", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return text(strings.Repeat("x", 1<<20))
	})
	add("fails", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		r, _ := text("there is no such \x00 issue")
		r.IsError = true
		return r, nil
	})
	add("refuses", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return nil, fmt.Errorf("not with %s", os.Getenv("SECRET"))
	})
	add("asks", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		if req.Session.InitializeParams() == nil || req.Session.InitializeParams().ProtocolVersion >= "2026-07-28" {
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{Message: "sure?",
				RequestedSchema: json.RawMessage(`{"type": "object"}`)}}}, nil
		}
		_, err := req.Session.Elicit(ctx, &sdk.ElicitParams{Message: "sure?"})
		return nil, err
	})
	add("hangs", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		began <- ""
		<-ctx.Done()
		cancelled <- string(req.Params.Arguments)
		return nil, ctx.Err()
	})
	for name, heard := range map[string]chan string{"began": began, "cancelled": cancelled} {
		add(name, func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			select {
			case which := <-heard:
				return text(which)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
	}
	add("dies", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		os.Exit(3)
		return nil, nil
	})
	add("dies-once", func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		var in struct{ File string }
		if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
			return nil, err
		}
		if os.Mkdir(in.File, 0o700) == nil {
			os.Exit(3)
		}
		return text("done")
	})
	add("counts", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{StructuredContent: map[string]int64{"calls": calls.Add(1)}}, nil
	}, structured)
	add("about", func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		meta, err := json.Marshal(req.Params.Meta)
		return &sdk.CallToolResult{StructuredContent: map[string]any{"env": os.Environ(), "pid": os.Getpid(),
			"meta": json.RawMessage(meta)}}, err
	}, structured)
	add("slow", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
		return text("done")
	})
	add("two-names", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return text("-") })
	add("two.names", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return text(".") })
	return s
}
