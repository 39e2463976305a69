package view

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Request is a request to a model: a row of the view gem.model_requests.
type Request struct {
	CallID  string `json:"call_id"`
	N       int    `json:"n"` // numbers the requests of the call
	Attempt int    `json:"attempt"`
	Label   string `json:"label"` // main, member n, judge, repair n, or a step's name
	Route   string `json:"route"`
	Target  string `json:"target"`
	// Provider and Model are the names in the routes file; Answered is the provider's name of the model that
	// answered.
	Provider         string    `json:"provider"`
	Model            string    `json:"model"`
	Answered         string    `json:"answered,omitempty"`
	Status           string    `json:"status"` // sent, done, failed, cut, cancelled, lost
	ErrorKind        string    `json:"error_kind,omitempty"`
	HTTPStatus       int       `json:"http_status,omitempty"`
	At               time.Time `json:"at"`
	EndedAt          time.Time `json:"ended_at,omitzero"`
	FirstContentMS   *int64    `json:"first_content_ms,omitempty"`
	MS               *int64    `json:"ms,omitempty"`
	InputTokens      *int64    `json:"input_tokens,omitempty"`
	OutputTokens     *int64    `json:"output_tokens,omitempty"`
	CacheReadTokens  *int64    `json:"cache_read_tokens,omitempty"`
	CacheWriteTokens *int64    `json:"cache_write_tokens,omitempty"`
	ReasoningTokens  *int64    `json:"reasoning_tokens,omitempty"`
	Reserved         int64     `json:"reserved"`       // in 10⁻⁹ USD
	Cost             *int64    `json:"cost,omitempty"` // in 10⁻⁹ USD; nil if unknown: the reserve then counts as spent
	RoutesVersion    string    `json:"routes_version"`
}

// Requests returns the requests of a call to models, in order, at most 1,000.
func Requests(ctx context.Context, db DB, callID string) ([]Request, error) {
	rows, err := db.Query(ctx, `select call_id::text, n, attempt, label, route, target, provider, model, answered, status,
		error_kind, http_status, at, ended_at,
			first_content_ms, ms, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, reserved,
				cost, routes_version
		from gem.model_requests where call_id = $1 order by n limit 1000`, callID)
	if err == nil {
		var all []Request
		all, err = pgx.AppendRows([]Request{}, rows, func(row pgx.CollectableRow) (r Request, err error) {
			var httpStatus zeronull.Int4
			err = row.Scan(&r.CallID, &r.N, &r.Attempt, &r.Label, &r.Route, &r.Target, &r.Provider, &r.Model,
				(*zeronull.Text)(&r.Answered), &r.Status,
				(*zeronull.Text)(&r.ErrorKind), &httpStatus, &r.At, (*zeronull.Timestamptz)(&r.EndedAt), &r.FirstContentMS, &r.MS,
				&r.InputTokens, &r.OutputTokens,
				&r.CacheReadTokens, &r.CacheWriteTokens, &r.ReasoningTokens, &r.Reserved, &r.Cost, &r.RoutesVersion)
			r.HTTPStatus = int(httpStatus)
			return r, err
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the requests of call %s to models: %w", callID, err)
}
