package mcpclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// closeTime is the time limit for closing a connection. A program gets a part of it to end by itself.
	closeTime = 5 * time.Second
	// maxMessage is the maximum size of a server's message, in bytes. A longer message is skipped, and if it
	// is an answer, its call fails.
	maxMessage = 16 << 20
)

// session is a connection to a server.
type session struct {
	*sdk.ClientSession
	server  *server
	secrets secrets
	began   time.Time
	program *program // nil for a server at a URL
	input   *input   // of the program

	// asked is the last request of the server that was refused, and asks is their number.
	asked atomic.Pointer[string]
	asks  atomic.Int64

	known known

	// skipped counts writes of the server that are not messages, and notes logs them.
	skipped atomic.Int64
	notes   lines
}

// skip records a write of the server that is not a message.
func (s *session) skip(text []byte) {
	s.skipped.Add(1)
	_, _ = s.notes.Write(append(bytes.ReplaceAll(text[:min(len(text), keptLine+1)], []byte("\n"), []byte(" ")), '\n'))
}

// client refuses all requests of a server, because it has no person and no model to answer them.
func (s *session) client() *sdk.Client {
	c := sdk.NewClient(&sdk.Implementation{Name: "gem", Version: "1"}, &sdk.ClientOptions{
		Capabilities:   &sdk.ClientCapabilities{},
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
	})
	c.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			switch method {
			case "elicitation/create", "sampling/createMessage", "roots/list":
				s.asked.Store(&method)
				s.asks.Add(1)
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest,
					Message: "GEM calls tools, and does not answer " + method}
			}
			if strings.HasPrefix(method, "notifications/") {
				return nil, nil // GEM needs none, and some make the SDK panic if they have no parameters
			}
			return next(ctx, method, req)
		}
	})
	return c
}

func (s *session) transport() (sdk.Transport, error) {
	settings := s.server.settings
	if settings.Command != "" {
		p, err := s.start(settings)
		if err != nil {
			return nil, err
		}
		s.program = p
		s.input = newInput()
		e := &exact{input: s.input, methods: map[jsonrpc.ID]string{}}
		messages := &onlyMessages{Closer: p.stdout, lines: bufio.NewReaderSize(p.stdout, 64<<10), skip: s.skip,
			method: e.method}
		e.Transport = &sdk.IOTransport{Reader: messages, Writer: p, MaxLineLength: maxMessage}
		return e, nil
	}
	header := http.Header{}
	for name, variable := range settings.HeaderEnv {
		header.Set(name, credentials(name, s.secrets[variable]))
	}
	e := &exact{methods: map[jsonrpc.ID]string{}}
	e.Transport = &sdk.StreamableClientTransport{
		Endpoint:             settings.URL,
		HTTPClient:           s.through(header, &e.version),
		DisableStandaloneSSE: true,           // GEM does not wait for a server's notifications
		MaxEventSize:         2 * maxMessage, // never reached: limitedBody fails at maxMessage
	}
	return e, nil
}

// through returns the transport of the requests to a server at a URL.
func (s *session) through(header http.Header, version *atomic.Pointer[string]) *http.Client {
	forgotten := func() { s.server.drop(s) }
	return &http.Client{
		Transport:     &requests{skip: s.skip, forgotten: forgotten, secrets: s.secrets, header: header, version: version},
		CheckRedirect: refuseRedirect,
	}
}

// credentials returns the value of a header. A bare token gets the scheme Bearer, because Authorization always names a
// scheme.
func credentials(header, secret string) string {
	if strings.EqualFold(header, "Authorization") && !strings.Contains(secret, " ") {
		return "Bearer " + secret
	}
	return secret
}

// kill ends the program, if there is one, at once.
func (s *session) kill() {
	if s.program != nil {
		s.program.kill()
	}
}

// close ends the connection in order, or by force if that takes too long.
func (s *session) close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = s.Close()
	}()
	if s.program != nil {
		s.program.end()
	}
	select {
	case <-closed:
	case <-time.After(closeTime):
	}
}

// exact is a transport whose session gets the unchanged results of tools: the SDK would decode numbers into 53 bits,
// and reject kinds of content that it does not know. [raw] extracts them.
type exact struct {
	sdk.Transport
	version atomic.Pointer[string] // of the protocol that was agreed on
	input   *input                 // nil for a server at a URL

	mu      sync.Mutex
	methods map[jsonrpc.ID]string // of our requests, other than calls, that have no answer yet
}

// method returns the method of a request of ours.
func (e *exact) method(id jsonrpc.ID) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if method, ok := e.methods[id]; ok {
		return method
	}
	return "tools/call"
}

func (e *exact) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := e.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &exactConnection{Connection: c, exact: e, asked: map[jsonrpc.ID]bool{}}, nil
}

type exactConnection struct {
	sdk.Connection
	exact *exact

	mu    sync.Mutex
	asked map[jsonrpc.ID]bool // the server's requests that have no answer yet
}

// mostAsked is the maximum number of a server's requests that wait for answers. The SDK would keep any number.
const mostAsked = 100

// rawKey is the key under which the metadata of a result has the whole result, as text.
const rawKey = "io.github.gemworker/raw"

// asks adds a request of the server, and returns how many have no answer yet.
func (c *exactConnection) asks(id jsonrpc.ID) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[id] = true
	return len(c.asked)
}

// endsHandshake reports whether a request opened the connection, and forgets its method.
func (e *exact) endsHandshake(id jsonrpc.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	method := e.methods[id]
	delete(e.methods, id)
	return method == "initialize" || method == "server/discover"
}

// writes notes that an answer to the server, or a request of ours, is written.
func (c *exactConnection) writes(msg jsonrpc.Message) {
	switch msg := msg.(type) {
	case *jsonrpc.Response:
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.asked, msg.ID)
	case *jsonrpc.Request:
		if msg.IsCall() && msg.Method != "tools/call" {
			c.exact.mu.Lock()
			defer c.exact.mu.Unlock()
			c.exact.methods[msg.ID] = msg.Method
		}
	}
}

func (c *exactConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	if request, ok := msg.(*jsonrpc.Request); ok && request.IsCall() && c.asks(request.ID) > mostAsked {
		return nil, fmt.Errorf("it asked for more than %d things, and did not wait for answers", mostAsked)
	}
	response, ok := msg.(*jsonrpc.Response)
	if ok && response.Error != nil {
		response.Error = inAnswer(response.Error)
	}
	if !ok {
		return msg, err
	}
	handshake := c.exact.endsHandshake(response.ID)
	if response.Error != nil || !bytes.HasPrefix(response.Result, []byte("{")) || !json.Valid(response.Result) {
		return msg, err
	}
	if handshake {
		for name, value := range members(response.Result) {
			var agreed string
			if string(unquoted(name)) == "protocolVersion" && json.Unmarshal(value, &agreed) == nil {
				c.exact.version.Store(&agreed)
			}
		}
		return msg, err
	}
	raw, encodeErr := json.Marshal(map[string]string{rawKey: string(response.Result)})
	if encodeErr != nil {
		return msg, err
	}
	response.Result = replaced(response.Result, `"_meta":`+string(raw), "_meta", "content", "structuredContent",
		"inputRequests", "requestState", "resultType", "isError", "task")
	return response, err
}

// delivery is what is known about the message of a call.
type delivery struct {
	mu         sync.Mutex
	sent, over bool
}

// deliveryKey is the key of the [delivery] in the context of a call.
type deliveryKey struct{}

// deliveryOf returns the delivery of a request, or nil if it is not a call.
func deliveryOf(ctx context.Context, msg jsonrpc.Message) *delivery {
	if request, ok := msg.(*jsonrpc.Request); !ok || request.Method != "tools/call" {
		return nil
	}
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// begin notes that the message is about to be sent. It returns false if nobody waits for the answer any more.
func (d *delivery) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sent = d.sent || !d.over
	return !d.over
}

// failed notes that nothing was sent.
func (d *delivery) failed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sent = false
}

// end reports whether the message was sent, at least in part. Afterwards it is not sent any more.
func (d *delivery) end() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	return d.sent
}

func (c *exactConnection) Write(ctx context.Context, msg jsonrpc.Message) (err error) {
	c.writes(msg)
	d := deliveryOf(ctx, msg)
	if c.exact.input == nil {
		err = c.Connection.Write(ctx, msg) // its body notes when it is sent
	} else {
		err = c.exact.input.write(ctx, d, func() error { return c.Connection.Write(context.WithoutCancel(ctx), msg) })
	}
	wire := (*jsonrpc.Error)(nil)
	if errors.As(err, &wire) && !ofTheSDK(wire.Code) { // the body of an answer whose status is an error
		return asRefusal(err)
	}
	if d != nil && errors.As(err, new(*unsentError)) {
		d.failed()
	}
	return err
}

// raw returns the unchanged result.
func raw(meta sdk.Meta) json.RawMessage {
	text, _ := meta[rawKey].(string)
	return json.RawMessage(text)
}
