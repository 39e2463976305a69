package sqlfunc

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

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/internal/postgres/pgerror"
	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgconn"
)

// The SQLSTATEs with which a function returns more than a message.
const (
	failure       = "GM100" // detail: {"error_code", "details", "advice"}
	notConfigured = "GM101" // detail: {"reason", "required_env", "next_steps"}
	noOutput      = "GM102" // of gem.run_tool
	cancelled     = "57014"
	raised        = "P0001" // raise exception, without another code
)

// handler returns the handler of a tool that is this function.
func (f *Functions) handler(tool string, of function) *binding.Handler {
	shown := of.signature
	if of.fault != "" {
		shown += ", which is no tool: " + of.fault
	}
	return binding.NewHandler(File, shown, true, func(ctx context.Context, tx handlers.Tx,
		call *handlers.Call) (json.RawMessage, error) {
		if of.fault != "" {
			return nil, &handlers.NotConfigured{Reason: fmt.Sprintf("%s cannot be the tool %s: %s.", of.signature, tool,
				of.fault), NextSteps: []string{of.remedy}}
		}
		output, err := of.run(ctx, tx, call)
		if errors.Is(err, errGone) {
			return nil, f.gone(ctx, of)
		}
		return output, err
	})
}

var errGone = errors.New("the function is gone")

// gone reads the catalog again after a function was dropped since the last look: the call runs again if there is
// another function.
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
	return &handlers.NotConfigured{Reason: of.signature + " was dropped.",
		NextSteps: []string{"Create it again, and make the call again."}}
}

// settings are set for the transaction. Postgres ends the function at its deadline even if the worker cannot, and soon
// after the worker has died, because its locks would block the next attempt. (On some systems Postgres cannot detect
// the latter.) Nobody would read notices.
const settings = `select pg_catalog.set_config('statement_timeout', $1::bigint::text, true),
	pg_catalog.set_config('client_min_messages', 'error', true),
	pg_catalog.set_config('gem.wrote', '', true), pg_catalog.set_config('gem.read', '', true),
	case when version() like '%linux%' then pg_catalog.set_config('client_connection_check_interval', '2s', true) end`

// run runs the function, and records the effects that it noted.
func (of function) run(ctx context.Context, tx handlers.Tx, call *handlers.Call) (json.RawMessage, error) {
	var about any
	if of.call {
		about = map[string]any{"id": call.ID, "tool": call.Tool, "attempt": call.Attempt,
			"session_id": orNull(call.SessionID), "created_by": orNull(call.CreatedBy)}
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
	err := tx.QueryRow(ctx, "select there, output, effects from gem.run_tool($1, $2, $3)", of.name, call.Input,
		about).Scan(&there, &output, &effects)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &pgErr) && pgErr.Code == cancelled && time.Until(deadline) < time.Second:
		// by the statement_timeout, a moment earlier
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
	var effects receipts.HandlerEffects
	err := json.Unmarshal([]byte(noted), &effects)
	unknown := func(w receipts.DBWrite) bool {
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

// errorOf converts an error of the function's statement into the error of its call. Users see the messages that the
// tool's author raises, as P0001 or GM100. For any other error they get a sentence, the SQLSTATE and a reference,
// because Postgres's message may show code and rows. Operators find it in the journal and the log.
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
		failed := backends.Failure(said.ErrorCode, e.Message, said.Details)
		failed.Advice, failed.Context = said.Advice, contextOf(e)
		return failed
	case notConfigured:
		if err := strictly(cmp.Or(e.Detail, "{}"), &handlers.NotConfigured{}); err != nil {
			return of.malformed(e, `{"reason": "…", "required_env": […], "next_steps": […]}`)
		}
		return backends.NotConfigured(json.RawMessage(e.Detail), handlers.NotConfigured{Reason: e.Message})
	case noOutput:
		return &handlers.Failure{Code: string(receipts.OutputInvalid), Message: e.Message}
	}
	f := &handlers.Failure{Message: cmp.Or(e.Message, "The function failed."), Context: contextOf(e),
		Details: map[string]string{"sqlstate": e.Code}}
	if e.Code != raised {
		f.Message = fmt.Sprintf("%s failed unexpectedly. Its operators can look up the cause by the reference %s.",
			call.Tool, call.ID)
		f.Context = strings.TrimSuffix(receipts.Shorten(pgerror.Message(e), 1000)+"\n"+f.Context, "\n")
		f.Details = map[string]string{"sqlstate": e.Code, "reference": call.ID}
	}
	if store.IsTransient(e) {
		return handlers.Transient(f)
	}
	return f
}

// contextOf returns the origin of the error: the function, the line and the statement. It omits gem.run_tool, and
// statements that a function built dynamically.
func contextOf(e *pgconn.PgError) string {
	const runner = "PL/pgSQL function gem.run_tool("
	if strings.HasPrefix(e.Where, runner) {
		return ""
	}
	within, _, _ := strings.Cut(e.Where, "\n"+runner)
	if at := strings.LastIndex(within, "\nSQL statement \"select tools."); at >= 0 {
		within = within[:at]
	}
	inside := *e
	inside.Where = within
	return receipts.Shorten(strings.Join(pgerror.Where(&inside), "\n"), 4000)
}

// malformed returns the failure of a function whose error does not have the form of its SQLSTATE.
func (of function) malformed(e *pgconn.PgError, wanted string) error {
	return &handlers.Failure{Message: fmt.Sprintf("%s failed: %s (with errcode %s, its detail must be JSON of the form "+
		"%s)", of.signature, e.Message, e.Code, wanted),
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
