package servers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// closeTime is how long the end of a connection may take. A program gets a part of it to end by itself.
	closeTime = 5 * time.Second
	// maxMessage is how many bytes a message of a server may have. A longer one breaks the connection.
	maxMessage = 16 << 20
)

// session is a connection to a server.
type session struct {
	*sdk.ClientSession
	server  *server
	secrets secrets
	began   time.Time
	program *program // nil for a server at a URL

	// asked is the request of the server's that was refused last, and asks how many were.
	asked atomic.Pointer[string]
	asks  atomic.Int64

	known known

	// skipped counts what the server wrote that is no message, and notes says so in the log.
	skipped atomic.Int64
	notes   lines
}

// skip takes note of something that the server wrote, and that is no message.
func (s *session) skip(text []byte) {
	s.skipped.Add(1)
	_, _ = s.notes.Write(append(bytes.ReplaceAll(text[:min(len(text), 2000)], []byte("\n"), []byte(" ")), '\n'))
}

// client answers no request of a server: it has no person and no model to ask.
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
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "GEM calls tools, and does not answer " + method}
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
		messages := &onlyMessages{Closer: p.stdout, lines: bufio.NewReaderSize(p.stdout, 64<<10), skip: s.skip}
		return &exact{Transport: &sdk.IOTransport{Reader: messages, Writer: p, MaxLineLength: maxMessage}}, nil
	}
	header := http.Header{}
	for name, variable := range settings.HeaderEnv {
		header.Set(name, credentials(name, s.secrets[variable]))
	}
	e := &exact{}
	e.Transport = &sdk.StreamableClientTransport{
		Endpoint:             settings.URL,
		HTTPClient:           &http.Client{Transport: &requests{skip: s.skip, header: header, version: &e.version}, CheckRedirect: refuseRedirect},
		DisableStandaloneSSE: true, // GEM waits for no news of a server
		MaxEventSize:         maxMessage,
	}
	return e, nil
}

// credentials is the value of a header. A bare token becomes a bearer's, since Authorization always names a scheme.
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

// close ends the connection in order, and by force where that takes too long.
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

// exact is a transport whose session gets the results of tools as they came: the SDK would make numbers of them that hold 53 bits, and refuse kinds of
// content that it does not know. [raw] takes them out.
type exact struct {
	sdk.Transport
	version atomic.Pointer[string] // of the protocol that was agreed on
}

func (e *exact) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := e.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &exactConnection{Connection: c, exact: e}, nil
}

type exactConnection struct {
	sdk.Connection
	exact *exact
	asked atomic.Int64 // requests of the server's that have no answer yet
}

// mostAsked is how many requests of a server may wait for their answers. The SDK would keep any number of them.
const mostAsked = 100

// rawKey is where the metadata of a result has all of it, as text.
const rawKey = "io.github.gemworker/raw"

func (c *exactConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	if request, ok := msg.(*jsonrpc.Request); ok && request.IsCall() && c.asked.Add(1) > mostAsked {
		return nil, fmt.Errorf("it asked for more than %d things, and did not wait for answers", mostAsked)
	}
	response, ok := msg.(*jsonrpc.Response)
	if ok && response.Error != nil {
		response.Error = asRefusal(response.Error)
	}
	if !ok || response.Error != nil || len(response.Result) == 0 {
		return msg, err
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(response.Result, &fields) != nil || fields == nil {
		return msg, err
	}
	if version, handshake := fields["protocolVersion"]; handshake {
		var agreed string
		if json.Unmarshal(version, &agreed) == nil {
			c.exact.version.Store(&agreed)
		}
		return msg, err
	}
	if _, handshake := fields["supportedVersions"]; handshake {
		return msg, err
	}
	raw, encodeErr := json.Marshal(map[string]string{rawKey: string(response.Result)})
	if encodeErr != nil {
		return msg, err
	}
	for _, left := range []string{"content", "structuredContent", "inputRequests", "requestState", "resultType", "isError", "task"} {
		delete(fields, left)
	}
	fields["_meta"] = raw
	if response.Result, encodeErr = json.Marshal(fields); encodeErr != nil {
		return nil, fmt.Errorf("a result cannot be read: %w", encodeErr)
	}
	return response, err
}

// sentKey is the key of the flag in the context of a call that is set before the call is sent.
type sentKey struct{}

func (c *exactConnection) Write(ctx context.Context, msg jsonrpc.Message) error {
	if request, ok := msg.(*jsonrpc.Request); ok && request.Method == "tools/call" {
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
	}
	if _, ok := msg.(*jsonrpc.Response); ok {
		defer c.asked.Add(-1)
	}
	err := c.Connection.Write(ctx, msg)
	wire := (*jsonrpc.Error)(nil)
	if errors.As(err, &wire) && !ofTheSDK(wire.Code) { // the body of an answer whose status is an error
		return asRefusal(err)
	}
	if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok && errors.As(err, new(*unwritten)) {
		sent.Store(false)
	}
	return err
}

// raw returns a result as it came.
func raw(meta sdk.Meta) json.RawMessage {
	text, _ := meta[rawKey].(string)
	return json.RawMessage(text)
}

// inJSON is a text as it stands within a string of JSON.
func inJSON(text string) string {
	encoded, err := json.Marshal(text)
	if err != nil {
		return text
	}
	return string(encoded[1 : len(encoded)-1])
}
