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

// call answers tools/call: the call is inserted, and awaited for a while.
func (d *Door) call(ctx context.Context, t *tool, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	c, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	r, err := d.read(c, t, req)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(d.o.Wait)
	if id, err := d.resumed(ctx, c, r, req); err != nil {
		return nil, err
	} else if id != "" {
		r.ID = id
	} else if err := d.enqueue(ctx, c, r, until); err != nil {
		if why, ok := refused(err); ok {
			return d.refusal(r, why), nil
		}
		return nil, err
	}
	stop := d.progress(ctx, c, req, r.ID)
	defer stop()
	s, answer, err := d.follow(ctx, c, req, taskSlotOf(ctx), r.ID, until, false)
	if ctx.Err() != nil { // nobody waits for the answer any more
		d.abandon(ctx, c, r.ID)
	}
	switch {
	case err != nil && again(err): // the call is there, though it cannot be seen now
		return pending(state{Seen: client.Seen{ID: r.ID, Tool: r.Tool}}), nil
	case err != nil || answer != nil:
		return answer, err
	}
	return d.result(s)
}

// request is what a tools/call asks for.
type request struct {
	client.NewCall
	tool *tool
	key  string // under which it can be asked again; empty for none
}

var traceparent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// read makes a request of a tools/call. What others put into _meta is left out where it cannot be used; what is ours must be right.
func (d *Door) read(c caller, t *tool, req *sdk.CallToolRequest) (r request, err error) {
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
	if err := ours(m, "session", "a string", func(v any) (ok bool) { r.SessionID, ok = v.(string); return ok }); err != nil {
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

// ours reads a field of _meta that has our prefix, where it is there.
func ours(m map[string]any, name, must string, take func(any) bool) error {
	if value, ok := m[meta+name]; ok && value != nil && !take(value) {
		return invalid("_meta[%q] must be %s", meta+name, must)
	}
	return nil
}

// arguments returns the input of a call, without the gem_key that the tool itself does not know.
func arguments(t *tool, given json.RawMessage) (input json.RawMessage, key *string, err error) {
	if len(given) == 0 || string(given) == "null" {
		return json.RawMessage("{}"), nil, nil
	}
	if !t.keyed {
		return given, nil, nil
	}
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal(given, &fields) // what is no object is the database's to refuse
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
	oneTry        = 10 * time.Second // for a statement, before it is sent again
	usualPatience = 5 * time.Second  // with a database that cannot be reached, while nothing was sent to it
)

// enqueue inserts the call. Where the connection breaks, so that nobody knows whether it was inserted, it asks again for the same id, which is the same call,
// until a time.
func (d *Door) enqueue(ctx context.Context, c caller, r request, until time.Time) (err error) {
	giveUp := time.Now().Add(d.patience)
	sent := false
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), oneTry)
		began := false
		err = d.as(try, c, func(db client.DB) error {
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

// enqueueError says what is known of a call that was to be inserted.
func (d *Door) enqueueError(r request, err error, sent bool) error {
	if _, ok := refused(err); err == nil || ok {
		return err
	}
	if !sent {
		return internal("The call was not made: %s.", reason(err))
	}
	how := fmt.Sprintf("gem_result with call_id %s tells, once Postgres answers", r.ID)
	if r.key != "" {
		how = fmt.Sprintf("make it again with the same key, %q, which is the same call; or %s", r.key, how)
	}
	return internal("Whether the call was made is not known: %s. To find out, %s.", reason(err), how)
}

// abandon does what is to be done with a call whose request ended while it was awaited: nothing, or it is cancelled. The cause of the end is
// context.Canceled where the client asked for it, by notifications/cancelled; otherwise the client is gone.
func (d *Door) abandon(ctx context.Context, c caller, id string) {
	asked := errors.Is(context.Cause(ctx), context.Canceled)
	if asked && d.o.KeepOnCancel || !asked && !d.o.CancelOnDisconnect {
		return
	}
	try, cancel := context.WithTimeout(context.WithoutCancel(ctx), 700*time.Millisecond) // the process may be about to end
	defer cancel()
	if _, err := d.cancel(try, c, id); err != nil {
		d.o.Log.Sugar().Warnf("call %s was not cancelled: %s", id, reason(err))
	}
}

// cancel ends a call of the caller, or asks its worker to.
func (d *Door) cancel(ctx context.Context, c caller, id string) (answer client.Cancellation, err error) {
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
