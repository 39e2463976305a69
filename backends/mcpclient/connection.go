package mcpclient

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/scrub"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"
)

const (
	connectTime  = 45 * time.Second       // until a server must have answered, with the start of its program
	firstBackoff = 250 * time.Millisecond // after a connection that failed or broke early, doubled for each further one
	mostBackoff  = 30 * time.Second
	mostPatience = time.Second      // how long of it a call waits in its slot; for more it goes back into the queue
	steady       = 10 * time.Second // a connection that lasted so long did not break early
	// oldProtocol is offered to a server that did not answer to the newest one.
	oldProtocol = "2025-11-25"
)

// server is one MCP server, and its connection, if it has one.
type server struct {
	domain   string
	settings backends.Server
	lookup   func(variable string) string
	log      *zap.Logger
	life     context.Context // until close
	end      context.CancelFunc

	mu         sync.Mutex
	session    *session
	connecting *connectionAttempt
	failures   int       // connections in a row that failed or broke early
	notBefore  time.Time // when the next may begin
	reason     error     // of the last that failed or broke early
	old        bool      // the next offers the older protocol
	closed     bool
}

// connectionAttempt connects for all calls that wait for the connection.
type connectionAttempt struct {
	done    chan struct{}
	session *session // once done
	err     error
}

var errClosed = errors.New("the worker stops, and its connections are closed")

// connected returns the connection, and connects if there is none. Its errors report that nothing was sent.
func (s *server) connected(ctx context.Context) (*session, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	if s.session != nil {
		defer s.mu.Unlock()
		return s.session, nil
	}
	c := s.connecting
	if c == nil {
		if pause := time.Until(s.notBefore); pause > 0 {
			reason := s.reason
			s.mu.Unlock()
			if pause > mostPatience {
				return nil, again(reason, pause)
			}
			select {
			case <-time.After(pause):
				return s.connected(ctx)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		secrets, err := s.secrets()
		if err != nil {
			s.mu.Unlock()
			return nil, err
		}
		c = &connectionAttempt{done: make(chan struct{})}
		s.connecting = c
		go s.connect(c, secrets)
	}
	s.mu.Unlock()
	select {
	case <-c.done:
		return c.session, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// connect makes the connection, independently of the call that needs it first: others may need it after that call has
// ended.
func (s *server) connect(c *connectionAttempt, secrets secrets) {
	ctx, cancel := context.WithTimeout(s.life, connectTime)
	defer cancel()
	s.mu.Lock()
	old := s.old
	s.mu.Unlock()
	made, err := s.open(ctx, secrets, old)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(c.done)
	s.connecting = nil
	switch {
	case err == nil && s.closed:
		go made.close()
		c.err = errClosed
	case err == nil:
		s.session, c.session = made, made
		go s.watch(made)
	default:
		s.old = !old
		if c.err = s.unreachable(err, secrets); s.closed {
			c.err = errClosed
			return
		}
		s.backOff(c.err)
		s.log.Warn("the MCP server cannot be reached", zap.String("reason", c.err.Error()))
	}
}

// open connects, and logs how.
func (s *server) open(ctx context.Context, secrets secrets, old bool) (*session, error) {
	made := &session{server: s, secrets: secrets, began: time.Now(), known: known{listing: make(chan struct{}, 1)}}
	made.notes = lines{secrets: secrets, say: func(line string, left int) {
		s.log.Warn("the MCP server wrote a line that is not a message: skipped it",
			zap.Int64("skipped", made.skipped.Load()))
		s.log.Debug("the MCP server wrote a line that is not a message", zap.String("line", line),
			zap.Int("lines_left_out", left))
	}}
	transport, err := made.transport()
	if err != nil {
		return nil, err
	}
	options := &sdk.ClientSessionOptions{}
	if old {
		options.ProtocolVersion = oldProtocol
	}
	connected := make(chan struct{})
	go func() { // Connect does not return before a program that does not read has ended
		select {
		case <-ctx.Done():
			made.kill()
		case <-connected:
		}
	}()
	made.ClientSession, err = made.client().Connect(ctx, transport, options)
	if err == nil {
		if err = made.learn(ctx); err != nil {
			go made.close()
		}
	}
	close(connected)
	if err != nil {
		made.kill()
		return nil, err
	}
	about := made.InitializeResult()
	fields := []zap.Field{zap.String("protocol", value.OneLine(secrets.scrub(about.ProtocolVersion)))}
	if about.ServerInfo != nil {
		fields = append(fields, zap.String("name", value.OneLine(secrets.scrub(about.ServerInfo.Name))),
			zap.String("version", value.OneLine(secrets.scrub(about.ServerInfo.Version))))
	}
	s.log.Info("the MCP server is connected", fields...)
	return made, nil
}

// watch waits for the end of a connection, so that the next call makes a new one.
func (s *server) watch(made *session) {
	err := made.Wait()
	s.mu.Lock()
	if s.session == made {
		s.session = nil
		if time.Since(made.began) < steady {
			s.backOff(handlers.NothingSent(fmt.Errorf("the MCP server %s broke its last connection soon after it was made, "+
				"and nothing was sent", s.domain), 0))
		} else {
			s.failures = 0
		}
		if !s.closed {
			reason := ""
			if err != nil {
				reason = made.secrets.said(err)
			}
			s.log.Warn("the connection to the MCP server has ended", zap.String("reason", reason))
		}
	}
	s.mu.Unlock()
	made.close()
}

// drop abandons a connection that the server has forgotten.
func (s *server) drop(made *session) {
	s.mu.Lock()
	if s.session == made {
		s.session = nil
	}
	s.mu.Unlock()
	go made.close()
}

// backOff delays the next connection. The caller holds the lock.
func (s *server) backOff(reason error) {
	s.reason = reason
	s.failures = min(s.failures+1, 20)
	s.notBefore = time.Now().Add(min(firstBackoff<<(s.failures-1), mostBackoff))
}

// again returns the error of a failed connection, for a call before the next connection.
func again(reason error, pause time.Duration) error {
	if transient := (*handlers.TransientError)(nil); errors.As(reason, &transient) {
		// the connection failed, and no call was sent through it
		return handlers.NothingSent(transient.Err, max(pause, transient.After))
	}
	return reason
}

// close ends the connection, and prevents others.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	made, c := s.session, s.connecting
	s.session = nil
	s.mu.Unlock()
	s.end()
	if made != nil {
		made.close()
	}
	if c != nil {
		select {
		case <-c.done:
		case <-time.After(closeTime):
		}
	}
}

// secrets has the values of the variables that a server gets, by the variables' names.
type secrets map[string]string

// secrets reads the variables, and names the unset ones.
func (s *server) secrets() (secrets, error) {
	found := secrets{}
	var unset []string
	for _, variable := range append(slices.Sorted(maps.Values(s.settings.HeaderEnv)), s.settings.Env...) {
		found[variable] = strings.TrimSpace(s.lookup(variable))
		if found[variable] == "" && !slices.Contains(unset, variable) {
			unset = append(unset, variable)
		}
	}
	if len(unset) > 0 {
		return nil, &handlers.NotConfigured{
			Reason: fmt.Sprintf("The MCP server %s needs %s, which domains.json names and the worker's environment does "+
				"not have.", s.domain, strings.Join(unset, ", ")),
			RequiredEnv: unset,
			NextSteps: []string{"Set " + strings.Join(unset, ", ") + " in the worker's environment.",
				"Restart the worker and make the call again."},
		}
	}
	return found, nil
}

// shortestSecret is the minimum length of a secret value, in bytes: values such as 1 or true occur in every answer.
const shortestSecret = 8

// scrub replaces the values by their variables' names, because a server may repeat them.
func (s secrets) scrub(text string) string {
	for _, variable := range slices.Sorted(maps.Keys(s)) {
		secret := s[variable]
		_, credentials, _ := strings.Cut(secret, " ") // after Bearer, or another scheme
		for _, form := range []string{secret, credentials} {
			if len(form) >= shortestSecret {
				text = scrub.Replace(text, form, "["+variable+"]")
			}
		}
	}
	return text
}

// beginning scrubs at most the first bytes of a text, without a part of a secret at their end.
func (s secrets) beginning(text string, most int) string {
	return scrub.Beginning(text, most, slices.Collect(maps.Values(s)), s.scrub)
}

// said returns the text of an error in one line. If the SDK cannot decode something, its error quotes a part of it,
// which may contain a part of a secret.
func (s secrets) said(err error) string {
	text := err.Error()
	if !errors.As(err, new(*refusal)) && (strings.Contains(text, "json: ") || strings.Contains(text, "unmarshal")) {
		return "it sent something that cannot be read"
	}
	return value.OneLine(s.scrub(text))
}
