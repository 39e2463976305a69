package supabase

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
)

// Wire is one connection to PostgREST, without a proxy or a library that could repair the server's output.
type Wire struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

// WireAnswer is a response, exactly as received.
type WireAnswer struct {
	StatusLine string   // without its line break
	Headers    []string // one per line
	Body       string
}

// Wire opens a connection, which stays open until the end of the test.
func (p *Project) Wire() *Wire {
	p.t.Helper()
	conn, err := p.dial(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return &Wire{p.t, conn, bufio.NewReaderSize(conn, 1<<20)}
}

// Send sends a request and returns one response.
func (w *Wire) Send(r Request) WireAnswer {
	w.t.Helper()
	var head strings.Builder
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: postgrest\r\nContent-Length: %d\r\n", r.Method, r.Path, len(r.Body))
	if r.Body != "" {
		head.WriteString("Content-Type: application/json\r\n")
	}
	if r.Token != "" {
		head.WriteString("Authorization: Bearer " + r.Token + "\r\n")
	}
	for name, value := range r.Header {
		head.WriteString(name + ": " + value + "\r\n")
	}
	if _, err := io.WriteString(w.conn, head.String()+"\r\n"+r.Body); err != nil {
		w.t.Fatalf("send %s %s: %v", r.Method, r.Path, err)
	}
	a := WireAnswer{StatusLine: w.line()}
	length := 0
	for line := w.line(); line != ""; line = w.line() {
		name, value, _ := strings.Cut(line, ":")
		a.Headers = append(a.Headers, line)
		switch strings.ToLower(name) {
		case "content-length":
			length, _ = strconv.Atoi(strings.TrimSpace(value))
		case "transfer-encoding":
			length = -1
		}
	}
	for length == -1 { // chunked
		size, err := strconv.ParseInt(w.line(), 16, 32)
		if err != nil {
			w.t.Fatalf("a chunk of the response to %s %s: %v", r.Method, r.Path, err)
		}
		a.Body += w.read(int(size))
		_ = w.line()
		if size == 0 {
			return a
		}
	}
	a.Body = w.read(length)
	return a
}

// Left returns the data that the server has sent after the responses that were read.
func (w *Wire) Left() string { return w.read(w.in.Buffered()) }

func (w *Wire) line() string {
	w.t.Helper()
	line, err := w.in.ReadString('\n')
	if err != nil {
		w.t.Fatalf("read a line of the response: %v", err)
	}
	return strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
}

func (w *Wire) read(n int) string {
	w.t.Helper()
	text := make([]byte, n)
	if _, err := io.ReadFull(w.in, text); err != nil {
		w.t.Fatalf("read the response: %v", err)
	}
	return string(text)
}
