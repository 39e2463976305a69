package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/issuer"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"
)

const (
	headerTimeout = 5 * time.Second         // for a request's headers
	bodyTimeout   = 10 * time.Second        // for a request's body
	answerTimeout = time.Minute             // for its answer, after the longest wait
	idleTimeout   = 2 * time.Minute         // between two requests of a connection
	stopTimeout   = 1500 * time.Millisecond // for answers to waiting requests at shutdown
)

// httpServer serves Streamable HTTP without sessions. Before the SDK sees a request, it passes these checks, in this
// order: host and origin, its token, the limits of its number, size and depth, and its scopes.
type httpServer struct {
	server      *Server
	config      HTTPConfig
	verifier    verifier // if nil, anyone is served
	resource    *url.URL
	metadataURL string

	json, stream http.Handler // answer with one JSON message, or with a stream of them
	requests     room         // in flight
	bodies       room         // bytes
	bodyTimeout  time.Duration
}

// ServeHTTP serves clients at a listener until ctx ends. Then it answers waiting requests as pending, accepts no new
// ones, and returns within 2 s; calls continue. Its error is a [*ConfigError] or a [*NoRoleError] if it must not
// serve.
func (d *Server) ServeHTTP(ctx context.Context, l net.Listener, c HTTPConfig) error {
	s, err := d.newHTTPServer(l.Addr(), c)
	if err != nil {
		_ = l.Close()
		return &ConfigError{err}
	}
	if err := d.checkRole(ctx); err != nil {
		_ = l.Close()
		return err
	}
	server := &http.Server{
		Handler: s.routes(), ReadHeaderTimeout: headerTimeout, WriteTimeout: d.o.Wait + answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
	if server.ErrorLog, err = zap.NewStdLogAt(d.o.Log, zap.WarnLevel); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	d.o.Log.Info("serving MCP over HTTP", zap.String("address", "http://"+l.Addr().String()+"/mcp"),
		zap.String("auth", cmp.Or(c.Auth, "none")))
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	d.Stop()
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.grace)
	defer cancel()
	if server.Shutdown(patience) != nil {
		_ = server.Close()
	}
	return nil
}

func (d *Server) newHTTPServer(at net.Addr, c HTTPConfig) (s *httpServer, err error) {
	if err := c.complete(at); err != nil {
		return nil, err
	}
	s = &httpServer{server: d, config: c, requests: room{most: maxRequests, each: maxEach},
		bodies: room{most: maxBodies}, bodyTimeout: bodyTimeout}
	if s.resource, err = url.Parse(c.Resource); err != nil {
		return nil, fmt.Errorf("GEM_MCP_RESOURCE: %w", err)
	}
	s.metadataURL = metadataURL(s.resource)
	switch c.Auth {
	case "token":
		tokens, err := openTokens(c.Tokens, d.o.Log)
		if err != nil {
			return nil, err
		}
		if c.Scopes != "on" && slices.ContainsFunc(tokens.all, func(t token) bool { return len(t.scopes) > 0 }) {
			d.o.Log.Warn("tokens of GEM_MCP_TOKENS have scopes, which are ignored: each token is valid for all tools, unless " +
				"GEM_MCP_SCOPES is on")
		}
		s.verifier = tokens
	case "jwt":
		var published *issuer.Keys
		if c.Secret == "" {
			published = issuer.NewKeys(c.JWKS, time.Now)
		}
		s.verifier = &jwtVerifier{issuer.NewVerifier(c.Issuer, c.Audience, published, c.Secret, time.Now)}
		if c.Audience != c.Resource {
			d.o.Log.Warn("tokens that the issuer made for other services with the same audience are accepted too: "+
				"GEM_MCP_AUDIENCE is not GEM_MCP_RESOURCE",
				zap.String("audience", c.Audience))
		}
	}
	d.apart, d.shared = true, s.verifier != nil
	d.sdk.AddReceivingMiddleware(d.survive, endWithClient, d.refuseUncovered, d.hideUncovered, d.listCovered)
	handler := func(asJSON bool) http.Handler {
		return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return d.sdk }, &sdk.StreamableHTTPOptions{
			Stateless: true, JSONResponse: asJSON, MaxRequestBodyBytes: maxBody,
			DisableLocalhostProtection: true /* checkHost does it */})
	}
	s.json, s.stream = handler(true), handler(false)
	return s, nil
}

// routes returns the handler for all paths of the server.
func (s *httpServer) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /mcp", s.checkHost(http.NewCrossOriginProtection().
		Handler(s.unlessStopping(s.authenticate(http.HandlerFunc(s.post))))))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	described := s.describe()
	mux.Handle("GET "+wellKnown, described)
	mux.Handle("GET "+wellKnown+"/mcp", described)
	if u, err := url.Parse(s.metadataURL); err == nil && u.Path != wellKnown && u.Path != wellKnown+"/mcp" {
		// A proxy may serve /mcp under another path.
		mux.HandleFunc("GET "+wellKnown+"/", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != u.Path {
				http.NotFound(w, r)
				return
			}
			described.ServeHTTP(w, r)
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// This includes rejected requests, whose bodies the server reads to the end. ReadTimeout would end the
		// context of a waiting request.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyTimeout))
		mux.ServeHTTP(w, r)
	})
}

// checkHost rejects requests to a loopback address that name another host: a web page can make its own name resolve
// to it. The names of GEM_MCP_RESOURCE are valid too, since a proxy on this machine passes them on.
func (s *httpServer) checkHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if at != nil && isLoopback(at.String()) && !isLoopback(r.Host) && !strings.EqualFold(r.Host, s.resource.Host) {
			http.Error(w, "the header Host does not name this server; behind a proxy, GEM_MCP_RESOURCE sets its name",
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// unlessStopping rejects all requests once the server stops.
func (s *httpServer) unlessStopping(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.server.closing.Done():
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "1")
			http.Error(w, "this server is stopping", http.StatusServiceUnavailable)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// post passes on one message, or the few of a batch, which clients of 2025-03-26 may send.
func (s *httpServer) post(w http.ResponseWriter, r *http.Request) {
	c, err := callerOf(r.Context())
	if err != nil {
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	subject := "" // without tokens, all requests share the room
	if s.verifier != nil {
		subject = c.subject
	}
	if !s.requests.take(subject, 1) { // before the body, which may take long
		tooMany(w)
		return
	}
	defer s.requests.giveBack(subject, 1)
	body, done := s.body(w, r, subject)
	if done == nil {
		return
	}
	defer done()
	var about outline
	// Decoders that call themselves for each level would need a deep stack.
	if about.read(body); about.deepest > maxDepth {
		_, answer := about.check(body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
		return
	}
	messages, few := peek(body)
	if !few {
		http.Error(w, fmt.Sprintf("a batch may have at most %d messages", maxBatch), http.StatusRequestEntityTooLarge)
		return
	}
	calls, streamed := 0, false
	for _, m := range messages {
		if m.id != nil {
			calls++
		}
		streamed = streamed || m.progress
	}
	more := max(calls-1, 0)
	if !s.requests.take(subject, more) {
		tooMany(w)
		return
	}
	defer s.requests.giveBack(subject, more)
	if !s.inScope(w, c, messages) || !taskNamed(w, r, messages) {
		return
	}
	ctx := context.WithValue(r.Context(), clientKey{}, r.Context())
	r = r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	if streamed {
		s.stream.ServeHTTP(w, r)
		return
	}
	s.json.ServeHTTP(w, r)
}

// body reads a request's body within its limits, and answers the request if the body exceeds them; done is then nil.
// The bytes count as they arrive, until done is called: bytes that a client only announces take no room from others.
func (s *httpServer) body(w http.ResponseWriter, r *http.Request, subject string) (body []byte, done func()) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyTimeout))
	from, reserved := http.MaxBytesReader(w, r.Body, maxBody), 0
	var err error
	for err == nil {
		if len(body) == reserved {
			more := min(max(firstRoom, reserved), maxBody+1-reserved)
			if !s.bodies.take(subject, more) {
				s.bodies.giveBack(subject, reserved)
				w.Header().Set("Connection", "close") // the rest is not read
				tooMany(w)
				return nil, nil
			}
			reserved += more
			body = slices.Grow(body, more)
		}
		var n int
		n, err = from.Read(body[len(body):reserved])
		body = body[:len(body)+n]
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		http.Error(w, "a message may have at most 2 MiB", http.StatusRequestEntityTooLarge)
	case !errors.Is(err, io.EOF): // the deadline stays, or closing the connection would wait for the rest
		w.Header().Set("Connection", "close")
		http.Error(w, "the message did not arrive in time", http.StatusRequestTimeout)
	default:
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return body, func() { s.bodies.giveBack(subject, reserved) }
	}
	s.bodies.giveBack(subject, reserved)
	return nil, nil
}

// message is the part of a message that is needed before the SDK reads it. The SDK answers a message that cannot be
// read.
type message struct {
	id       json.RawMessage // nil for a notification
	method   string
	name     string // of the tool
	taskID   string
	progress bool // the client asked for progress
}

// maxBatch is the largest number of messages in a batch.
const maxBatch = 64

// split returns the messages of a batch, or the only one. few is false if there are more than [maxBatch].
func split(body []byte) (batch []json.RawMessage, few bool) {
	one := []json.RawMessage{body}
	d := json.NewDecoder(bytes.NewReader(body))
	if first, err := d.Token(); err != nil || first != json.Delim('[') {
		return one, true
	}
	for d.More() {
		var raw json.RawMessage
		if d.Decode(&raw) != nil {
			return one, true
		}
		if batch = append(batch, raw); len(batch) > maxBatch {
			return nil, false
		}
	}
	return batch, true
}

// peek reads the messages of a body. It decodes to maps, since structs would match keys in any case of letters,
// unlike the SDK.
func peek(body []byte) (all []message, few bool) {
	batch, few := split(body)
	for _, raw := range batch {
		var whole, params, meta map[string]json.RawMessage
		_ = json.Unmarshal(raw, &whole)
		_ = json.Unmarshal(whole["params"], &params)
		_ = json.Unmarshal(params["_meta"], &meta)
		m := message{id: whole["id"], progress: meta["progressToken"] != nil}
		_ = json.Unmarshal(whole["method"], &m.method)
		_ = json.Unmarshal(params["name"], &m.name)
		_ = json.Unmarshal(params["taskId"], &m.taskID)
		all = append(all, m)
	}
	return all, few
}

// inScope answers a call to a tool that the token does not cover, as OAuth requires.
func (s *httpServer) inScope(w http.ResponseWriter, c caller, messages []message) bool {
	for _, m := range messages {
		if t := s.server.byName[m.name]; m.method == "tools/call" && t != nil && !c.covers(t.Tool) {
			s.challenge(w, http.StatusForbidden, "the token lacks a permission that "+t.Name+" needs", "insufficient_scope",
				scopeList(t.Permissions))
			return false
		}
	}
	return true
}

// taskNamed checks that Mcp-Name is the id of the task. For tools/call, where it is the name of the tool, the SDK
// checks it.
func taskNamed(w http.ResponseWriter, r *http.Request, messages []message) bool {
	if r.Header.Get("Mcp-Protocol-Version") < "2026-07-28" || len(messages) != 1 {
		return true
	}
	switch m := messages[0]; m.method {
	case "tasks/get", "tasks/update", "tasks/cancel":
		if r.Header.Get("Mcp-Name") == m.taskID {
			return true
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		answer, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m.id, "error": &jsonrpc.Error{
			Code: sdk.CodeHeaderMismatch, Message: "the header Mcp-Name must be the taskId of " + m.method}})
		_, _ = w.Write(answer)
		return false
	}
	return true
}

// clientKey is the key of the context of the HTTP request, which ends when the client disconnects.
type clientKey struct{}

// errClientGone is the cause of a context that ended because the client closed its connection.
var errClientGone = errors.New("the client closed its connection")

// endWithClient ends a request's context when its client disconnects, in all versions of the protocol: nobody waits
// for its answer.
func endWithClient(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if client, ok := ctx.Value(clientKey{}).(context.Context); ok {
			var cancel context.CancelCauseFunc
			ctx, cancel = context.WithCancelCause(ctx)
			defer cancel(nil)
			defer context.AfterFunc(client, func() { cancel(errClientGone) })()
		}
		return next(ctx, method, req)
	}
}
