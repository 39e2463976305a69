package functions

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/elsewhere"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgconn"
)

// The SQLSTATEs with which a function says more than a message.
const (
	failure       = "GM100" // detail: {"error_code", "details", "advice"}
	notConfigured = "GM101" // detail: {"reason", "required_env", "next_steps"}
	noOutput      = "GM102" // of gem.run_tool
	cancelled     = "57014"
	raised        = "P0001" // raise exception, without another code
)

// handler returns the handler of a tool that is this function.
func (f *Functions) handler(tool string, of function) *handlers.Handler {
	shown := of.signature
	if of.fault != "" {
		shown += ", which is no tool: " + of.fault
	}
	return handlers.NewHandler(File, shown, true, func(ctx context.Context, tx handlers.Tx, call *handlers.Call) (json.RawMessage, error) {
		if of.fault != "" {
			return nil, &handlers.NotConfigured{Reason: fmt.Sprintf("%s cannot be the tool %s: %s.", of.signature, tool, of.fault), NextSteps: []string{of.remedy}}
		}
		output, err := of.run(ctx, tx, call)
		if errors.Is(err, errGone) {
			return nil, f.gone(ctx, of)
		}
		return output, err
	})
}

var errGone = errors.New("the function is gone")

// gone looks what became of a function that was dropped since the last look: a call runs again where there is another.
func (f *Functions) gone(ctx context.Context, of function) error {
	if err := f.Look(ctx); err != nil {
		return handlers.Transient(err)
	}
	f.mu.Lock()
	_, other := f.byName[of.name]
	f.mu.Unlock()
	if other {
		return handlers.Transient(fmt.Errorf("%s has changed", of.signature))
	}
	return &handlers.NotConfigured{Reason: of.signature + " was dropped.", NextSteps: []string{"Create it again, and make the call again."}}
}

// settings are those of the transaction. Postgres ends the function at its time also where the worker cannot, and soon after the worker is gone: its
// locks would keep the next attempt waiting. (Postgres on other systems cannot see that.) Nobody would read notices.
const settings = `select set_config('statement_timeout', $1::bigint::text, true), set_config('client_min_messages', 'error', true),
	set_config('gem.wrote', '', true), set_config('gem.read', '', true),
	case when version() like '%linux%' then set_config('client_connection_check_interval', '2s', true) end`

// run runs the function, and records what it noted of its effects.
func (of function) run(ctx context.Context, tx handlers.Tx, call *handlers.Call) (json.RawMessage, error) {
	var about any
	if of.call {
		about = map[string]any{"id": call.ID, "tool": call.Tool, "attempt": call.Attempt, "session_id": orNull(call.SessionID), "created_by": orNull(call.CreatedBy)}
	}
	deadline, _ := ctx.Deadline()
	if _, err := tx.Exec(ctx, settings, max(time.Until(deadline).Milliseconds()+1, 1)); err != nil {
		return nil, err
	}
	var (
		there           bool
		output, effects *string
		pgErr           *pgconn.PgError
	)
	err := tx.QueryRow(ctx, "select there, output, effects from gem.run_tool($1, $2, $3)", of.name, call.Input, about).Scan(&there, &output, &effects)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &pgErr) && pgErr.Code == cancelled && time.Until(deadline) < time.Second: // by the statement_timeout, a moment before
		<-ctx.Done()
		return nil, ctx.Err()
	case errors.As(err, &pgErr):
		return nil, of.errorOf(pgErr, call)
	case err != nil:
		return nil, err
	case !there:
		return nil, errGone
	}
	return json.RawMessage(*output), of.record(call, *effects)
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// record records the effects that gem.wrote and gem.read noted.
func (of function) record(call *handlers.Call, noted string) error {
	var effects handlers.Effects
	err := json.Unmarshal([]byte(noted), &effects)
	unknown := func(w handlers.DBWrite) bool {
		return w.Action != handlers.Insert && w.Action != handlers.Update && w.Action != handlers.Delete
	}
	if err != nil || slices.ContainsFunc(effects.DBWrites, unknown) {
		return fmt.Errorf("%s changed settings that only GEM changes", of.signature)
	}
	for _, w := range effects.DBWrites {
		call.Wrote(w.Table, w.Action, w.ID)
	}
	for _, r := range effects.DBReads {
		call.Read(r.Table, r.Count)
	}
	return nil
}

// errorOf returns what an error of the function's statement means for its call. Users see the messages that the tool's author
// raises, as P0001 or GM100. For any other error they get a sentence, the SQLSTATE and a reference, since Postgres's message may show
// code and rows. Operators find it in the journal and the log.
func (of function) errorOf(e *pgconn.PgError, call *handlers.Call) error {
	switch e.Code {
	case failure:
		var said struct {
			ErrorCode string          `json:"error_code"`
			Details   json.RawMessage `json:"details"`
			Advice    handlers.Advice `json:"advice"`
		}
		if err := strictly(e.Detail, &said); err != nil || said.ErrorCode == "" {
			return of.malformed(e, `{"error_code": "…", "details": …, "advice": …}`)
		}
		failed := elsewhere.Failure(said.ErrorCode, e.Message, said.Details)
		failed.Advice, failed.Context = said.Advice, contextOf(e)
		return failed
	case notConfigured:
		if err := strictly(cmp.Or(e.Detail, "{}"), &handlers.NotConfigured{}); err != nil {
			return of.malformed(e, `{"reason": "…", "required_env": […], "next_steps": […]}`)
		}
		return elsewhere.NotConfigured(json.RawMessage(e.Detail), handlers.NotConfigured{Reason: e.Message})
	case noOutput:
		return &handlers.Failure{Code: string(receipts.OutputInvalid), Message: e.Message}
	}
	f := &handlers.Failure{Message: cmp.Or(e.Message, "The function failed."), Context: contextOf(e),
		Details: map[string]string{"sqlstate": e.Code}}
	if e.Code != raised {
		f.Message = fmt.Sprintf("%s failed unexpectedly. Its operators can look up the cause by the reference %s.",
			call.Tool, call.ID)
		f.Context = strings.TrimSuffix(value.Shorten(e.Message, 1000)+"\n"+f.Context, "\n")
		f.Details = map[string]string{"sqlstate": e.Code, "reference": call.ID}
	}
	if store.IsTransient(e) {
		return handlers.Transient(f)
	}
	return f
}

// contextOf returns where the error happened: the function, the line and the statement, without those of gem.run_tool.
func contextOf(e *pgconn.PgError) string {
	const runner = "PL/pgSQL function gem.run_tool("
	if strings.HasPrefix(e.Where, runner) {
		return ""
	}
	within, _, _ := strings.Cut(e.Where, "\n"+runner)
	if at := strings.LastIndex(within, "\nSQL statement \"select tools."); at >= 0 {
		within = within[:at]
	}
	if e.InternalQuery != "" { // a statement that Postgres could not read or plan
		within = fmt.Sprintf("SQL statement \"%s\"\n%s", value.Shorten(e.InternalQuery, 1000), within)
	}
	return within
}

// malformed is the error of a function whose error is not what its SQLSTATE promises.
func (of function) malformed(e *pgconn.PgError, wanted string) error {
	return &handlers.Failure{Message: fmt.Sprintf("%s failed: %s (with errcode %s, its detail must be JSON of the form %s)", of.signature, e.Message, e.Code, wanted),
		Details: map[string]string{"sqlstate": e.Code}, Context: contextOf(e)}
}

// strictly decodes the detail of an error, which must have no other fields.
func strictly(detail string, into any) error {
	d := json.NewDecoder(bytes.NewReader([]byte(detail)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return errors.New("more than one value")
	}
	return nil
}
