package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/value"
	"github.com/google/uuid"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// call answers tools/call: it inserts the call and waits for it for a while.
func (d *Server) call(ctx context.Context, t *tool, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	c, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	r, err := d.read(c, t, req)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(d.o.Wait)
	made := false
	if id, err := d.resumed(ctx, c, r, req); err != nil {
		return nil, err
	} else if id != "" {
		r.ID = id
	} else if err := d.enqueue(ctx, c, r, until); err != nil {
		if why, ok := refused(err); ok {
			return d.refusal(r, why), nil
		}
		return nil, err
	} else {
		made = true
	}
	stop := d.progress(ctx, c, req, r.ID)
	defer stop()
	s, answer, err := d.follow(ctx, c, req, taskSlotOf(ctx), r.ID, until, false)
	if made && errors.As(err, new(*noCallError)) && d.lost(ctx, until.Add(-d.o.Wait)) &&
		d.enqueue(ctx, c, r, time.Now().Add(oneTry)) == nil {
		return pending(state{VisibleCall: client.VisibleCall{ID: r.ID, Tool: r.Tool}}), nil
	}
	if ctx.Err() != nil { // nobody waits for the answer
		d.abandon(ctx, c, r.ID)
	}
	switch {
	case err != nil && again(err): // the call exists, but cannot be read now
		return pending(state{VisibleCall: client.VisibleCall{ID: r.ID, Tool: r.Tool}}), nil
	case err != nil || answer != nil:
		return answer, err
	}
	return d.result(s)
}

// lost reports whether a failover may have lost a call that was made at a time or later.
func (d *Server) lost(ctx context.Context, made time.Time) bool {
	const skew = time.Minute // between this clock and Postgres's
	ctx, cancel := context.WithTimeout(ctx, oneLook)
	defer cancel()
	pool, _, err := d.database(ctx)
	if err != nil {
		return false
	}
	lost, err := client.MayHaveLost(ctx, pool, made.Add(-skew))
	return err == nil && lost
}

// request is the call that a tools/call asks for.
type request struct {
	client.NewCall
	tool *tool
	key  string // retries with it return the same call; empty for none
}

var traceparent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// read converts a tools/call to a request. It ignores others' fields of _meta that it cannot use, and returns an
// error for wrong fields of ours.
func (d *Server) read(c caller, t *tool, req *sdk.CallToolRequest) (r request, err error) {
	r.tool, r.Tool, r.Awaited = t, t.Name, d.o.ListenURL != ""
	input, argument, err := arguments(t, req.Params.Arguments)
	if err != nil {
		return r, err
	}
	r.Input = input
	extra := req.GetExtra()
	if extra == nil {
		extra = &sdk.RequestExtra{}
	}
	m := req.Params.Meta
	key, chosen, err := theKey(m, extra.Header, argument)
	if err != nil {
		return r, err
	}
	if r.key = key; key != "" {
		r.ID = rowID(c.subject, t.Name, key)
	} else {
		r.ID = uuid.Must(uuid.NewV7()).String()
	}
	if chosen {
		r.IdempotencyKey = key
	}
	if session, ok := m["openai/session"].(string); ok && utf8.RuneCountInString(session) <= 255 {
		r.SessionID = session
	}
	if trace, ok := m["traceparent"].(string); ok && traceparent.MatchString(trace) {
		r.Traceparent = trace
	}
	if err := ours(m, "session", "a string", func(v any) (ok bool) {
		r.SessionID, ok = v.(string)
		return ok
	}); err != nil {
		return r, err
	}
	if err := ours(m, "parentCallId", "the id of a call", func(v any) (ok bool) {
		r.ParentCallID, ok = v.(string)
		return ok && value.IsUUID(r.ParentCallID)
	}); err != nil {
		return r, err
	}
	if err := ours(m, "priority", "a whole number from -1000 to 1000", func(v any) bool {
		n, ok := v.(float64)
		r.Priority = int(n)
		return ok && n == float64(r.Priority) && n >= -1000 && n <= 1000
	}); err != nil {
		return r, err
	}
	return r, ours(m, "runAt", "a time such as 2027-01-31T15:04:05Z", func(v any) bool {
		text, _ := v.(string)
		var err error
		r.RunAt, err = time.Parse(time.RFC3339, text)
		return err == nil
	})
}

// ours reads a field of _meta with our prefix, if it is present.
func ours(m map[string]any, name, must string, take func(any) bool) error {
	if value, ok := m[meta+name]; ok && value != nil && !take(value) {
		return invalid("_meta[%q] must be %s", meta+name, must)
	}
	return nil
}

// arguments returns the input of a call, without a gem_key that the tool itself does not define.
func arguments(t *tool, given json.RawMessage) (input json.RawMessage, key *string, err error) {
	if len(given) == 0 || string(given) == "null" {
		return json.RawMessage("{}"), nil, nil
	}
	if !t.keyed {
		return given, nil, nil
	}
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal(given, &fields) // the database rejects anything but an object
	if fields["gem_key"] == nil {
		return given, nil, nil
	}
	if json.Unmarshal(fields["gem_key"], &key) != nil || key == nil {
		return nil, nil, invalid("gem_key must be a string")
	}
	delete(fields, "gem_key")
	return encode(fields), key, nil
}

const (
	oneTry        = 10 * time.Second // for a statement, before a retry
	usualPatience = 5 * time.Second  // for an unreachable database, before the first statement
)

// enqueue inserts the call. If the connection breaks and the outcome is unknown, it retries with the same id, which
// is the same call, until a deadline. The end of the request ends no insert, but the wait for the user's other
// requests before it: otherwise clients that come and go could have any number that wait.
func (d *Server) enqueue(ctx context.Context, c caller, r request, until time.Time) (err error) {
	giveUp := time.Now().Add(d.patience)
	sent := false
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.tryFor)
		began := false
		err = d.asWhile(try, ctx, c, func(db client.DB) error {
			began = true
			_, err := client.Enqueue(try, db, r.NewCall)
			return err
		})
		cancel()
		if err == nil || !again(err) {
			return d.enqueueError(r, err, sent)
		}
		if sent = sent || began && !answered(err); sent {
			giveUp = until
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return d.enqueueError(r, err, sent)
		case <-d.closing.Done():
			return d.enqueueError(r, err, sent)
		}
		if time.Now().After(giveUp) {
			return d.enqueueError(r, err, sent)
		}
	}
}

// enqueueError describes what is known about a call after a failed insert.
func (d *Server) enqueueError(r request, err error, sent bool) error {
	if _, ok := refused(err); err == nil || ok {
		return err
	}
	if !sent {
		return internal("The call was not made: %s.", reason(err))
	}
	how := fmt.Sprintf("call gem_result with call_id %s once Postgres answers", r.ID)
	if r.key != "" {
		how = fmt.Sprintf("repeat it with the same key, %q, which is the same call; or %s", r.key, how)
	}
	return internal("It is unknown whether the call was made: %s. To find out, %s.", reason(err), how)
}

// abandon handles a call whose request ended while it waited: it cancels the call or leaves it. The cause of the end
// is context.Canceled if the client sent notifications/cancelled; otherwise the client has disconnected.
func (d *Server) abandon(ctx context.Context, c caller, id string) {
	asked := errors.Is(context.Cause(ctx), context.Canceled)
	if asked && d.o.KeepOnCancel || !asked && !d.o.CancelOnDisconnect {
		return
	}
	try, cancel := context.WithTimeout(context.WithoutCancel(ctx), 700*time.Millisecond) // the process may end soon
	defer cancel()
	if _, err := d.cancel(try, c, id); err != nil {
		d.o.Log.Sugar().Warnf("call %s was not cancelled: %s", id, reason(err))
	}
}

// cancel ends a call of the caller, or asks its worker to end it.
func (d *Server) cancel(ctx context.Context, c caller, id string) (answer client.Cancellation, err error) {
	err = d.as(ctx, c, func(db client.DB) error {
		answer, err = client.Cancel(ctx, db, id)
		return err
	})
	var none *client.NotFoundError
	if errors.As(err, &none) {
		return "", noCall(id)
	}
	return answer, err
}
