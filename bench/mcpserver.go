package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/postgres/pgpool"
	"github.com/gemworker/gem/mcp"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	mcpLogin = "bench_mcp" // the login of gem mcp
	mcpUser  = "bench"     // the user of stdio and of the calls that need no server
)

// mcpServer is a database with a worker of the gem program, and everything that gem mcp needs to serve it.
type mcpServer struct {
	*stage
	b      *bench
	worker int    // the process
	login  string // the connection string of mcpLogin
	http   *http.Client
	url    string // of gem mcp --http
	pid    int    // its process
	tokens []string
}

// withServer starts a worker with the given slots, and gem mcp --http with the given users, each with a token. With
// zero users it starts no gem mcp --http.
func (b *bench) withServer(ctx context.Context, c contestant, slots, users int, run func(*mcpServer) error) error {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return err
	}
	defer s.drop()
	d := &mcpServer{stage: s, b: b}
	for _, statement := range []string{
		"do $$ begin if to_regrole('" + mcpLogin + "') is null then create role " + mcpLogin +
			" login password 'bench' in role gem_mcp; end if; end $$",
		"update gem.limits set max_calls_per_hour = 1000000, max_open_calls = 1000000",
	} {
		if _, err := s.db.Exec(ctx, statement); err != nil {
			return err
		}
	}
	login, err := url.Parse(s.url)
	if err != nil {
		return err
	}
	login.User = url.UserPassword(mcpLogin, "bench")
	d.login = login.String()
	pid, stop, err := b.startWorker(ctx, s, fmt.Sprint("WORKER_CONCURRENCY=", slots))
	if err != nil {
		return err
	}
	defer stop()
	d.worker = pid
	if err := s.notes(ctx, warmUp); err != nil {
		return err
	}
	if err := s.waitEnded(ctx, c, warmUp); err != nil {
		return err
	}
	if users > 0 {
		stop, err := d.serve(ctx, users)
		if err != nil {
			return err
		}
		defer stop()
		defer d.http.CloseIdleConnections()
	}
	return run(d)
}

// serve starts gem mcp --http.
func (d *mcpServer) serve(ctx context.Context, users int) (stop func(), err error) {
	var lines strings.Builder
	for i := range users {
		token, line, err := mcp.NewToken(fmt.Sprint("user-", i))
		if err != nil {
			return nil, err
		}
		d.tokens = append(d.tokens, token)
		lines.WriteString(line + "\n")
	}
	file := filepath.Join(d.b.lab.scratch, "tokens-"+d.name)
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		return nil, err
	}
	free, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		return nil, err
	}
	cmd, end, err := d.program(ctx, []string{"mcp", "--http", address, "--auth", "token", "--wait", "10m"},
		"GEM_MCP_TOKENS="+file)
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		end()
		return nil, fmt.Errorf("start gem mcp: %w", err)
	}
	stop = func() { end(); _ = cmd.Wait() }
	d.pid, d.url = cmd.Process.Pid, "http://"+address
	d.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2000}}
	for limit := time.Now().Add(10 * time.Second); ; {
		answer, err := d.http.Get(d.url + "/healthz") //nolint:noctx // its own server
		if err == nil {
			return stop, answer.Body.Close()
		}
		if time.Now().After(limit) {
			stop()
			return nil, fmt.Errorf("gem mcp --http does not answer: %w", err)
		}
		if err := sleepUntil(ctx, time.Now().Add(5*time.Millisecond)); err != nil {
			stop()
			return nil, err
		}
	}
}

// program returns a command of the gem program on the server's database. It passes on nothing else of the bench's
// environment.
func (d *mcpServer) program(ctx context.Context, args []string, variables ...string) (cmd *exec.Cmd,
	end context.CancelFunc,
	err error) {
	program, err := d.b.build(ctx)
	if err != nil {
		return nil, nil, err
	}
	cmd, end = command(ctx, d.b.lab.scratch, program, args, append([]string{"DATABASE_URL=" + d.login}, variables...))
	return cmd, end, nil
}

// healthCheck returns a tools/call to os.health_check in the form of protocol version 2026-07-28, with further members
// of _meta.
func healthCheck(meta string) []byte {
	return []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"os_health_check","arguments":{},"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":{}` + meta + `}}}`)
}

// initialize is the first request of a client of protocol version 2025-11-25.
const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`

// checked returns the id of the call from an answer to healthCheck. It returns an error unless the call has succeeded.
func checked(answer []byte) (id string, err error) {
	var a struct {
		Result struct {
			Meta map[string]any `json:"_meta"`
		}
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return "", fmt.Errorf("%w: %.300s", err, answer)
	}
	id, _ = a.Result.Meta["io.github.gemworker/callId"].(string)
	if id == "" || a.Result.Meta["io.github.gemworker/status"] != "succeeded" {
		return "", fmt.Errorf("tools/call was answered by %.500s", answer)
	}
	return id, nil
}

// post makes a tools/call over HTTP for a user.
func (d *mcpServer) post(ctx context.Context, user int, body []byte) (id string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/mcp", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	for name, value := range map[string]string{"Content-Type": "application/json",
		"Accept":        "application/json, text/event-stream",
		"Authorization": "Bearer " + d.tokens[user], "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call",
		"Mcp-Name": "os_health_check"} {
		req.Header.Set(name, value)
	}
	response, err := d.http.Do(req)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("HTTP %s: %.300s", response.Status, answer)
	}
	return checked(answer)
}

// agent is a gem mcp over stdio.
type agent struct {
	pid  int
	to   io.WriteCloser
	from *bufio.Reader
	end  func() // closes its stdin and waits for its exit
}

// agent starts gem mcp as a client does.
func (d *mcpServer) agent(ctx context.Context, variables ...string) (*agent, error) {
	cmd, cancel, err := d.program(ctx, []string{"mcp", "--as", mcpUser}, variables...)
	if err != nil {
		return nil, err
	}
	to, err := cmd.StdinPipe()
	if err == nil {
		var from io.Reader
		if from, err = cmd.StdoutPipe(); err == nil {
			if err = cmd.Start(); err == nil {
				return &agent{pid: cmd.Process.Pid, to: to, from: bufio.NewReader(from),
					end: func() { _ = to.Close(); _ = cmd.Wait(); cancel() }}, nil
			}
		}
	}
	cancel()
	return nil, fmt.Errorf("start gem mcp: %w", err)
}

// ask sends a message and returns the next line of the answer.
func (a *agent) ask(message []byte) ([]byte, error) {
	if _, err := a.to.Write(append(bytes.Clone(message), '\n')); err != nil {
		return nil, err
	}
	line, err := a.from.ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		err = errors.New("gem mcp has ended")
	}
	return line, err
}

// call makes a tools/call to os.health_check.
func (a *agent) call() error {
	answer, err := a.ask(healthCheck(""))
	if err == nil {
		_, err = checked(answer)
	}
	return err
}

// insertAndWait is the core of a tools/call in the bench's process: an insert with the rights of a user, and a wait for
// the end.
type insertAndWait struct {
	pool    *pgxpool.Pool
	waiter  *client.Waiter
	listens bool
}

// inProcess opens connections as gem mcp does. With listens it receives notifications of ends, like gem mcp --http.
// Otherwise it polls, like gem mcp over stdio.
func (d *mcpServer) inProcess(ctx context.Context, listens bool) (*insertAndWait, error) {
	conns, listenURL := 1, ""
	if listens {
		conns, listenURL = 4, d.login
	}
	pool, err := pgpool.Open(ctx, d.login, pgpool.Options{MaxConns: int32(conns), Name: "bench"})
	if err != nil {
		return nil, err
	}
	return &insertAndWait{pool: pool, waiter: client.NewWaiter(pool, listenURL, nil), listens: listens}, nil
}

func (w *insertAndWait) call(ctx context.Context) error {
	var id string
	err := client.As(ctx, w.pool, client.Subject{ID: mcpUser, Role: "gem_frontend"}, func(db client.DB) (err error) {
		id, err = client.Enqueue(ctx, db, client.NewCall{Tool: "os.health_check", Awaited: w.listens})
		return err
	})
	if err != nil {
		return err
	}
	return w.waiter.Ended(ctx, id)
}

func (w *insertAndWait) close() {
	w.waiter.Close()
	w.pool.Close()
}
