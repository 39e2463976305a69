package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// NoticeRow is a row that gem.take_notices returns: see migrations/functions/notices.sql.
type NoticeRow struct {
	Kind, Subject, Tool, Code string
	At                        time.Time
	About                     json.RawMessage // nil for most kinds
}

// DueNotice is a batch of notices whose delivery is due.
type DueNotice struct {
	ID              int64
	Channel         string
	Count           int64
	FirstAt, LastAt time.Time
	First           json.RawMessage // what the batch stores of its first notice
}

// RecordNotify records a notify.json as [RecordRegistry] records a registry.
func RecordNotify(ctx context.Context, db DB, version, sha256 string, contents []byte) (sum string, recorded []byte,
	err error) {
	err = db.QueryRow(ctx, "select sha256, notify::text from gem.record_notify($1, $2, $3)", version, sha256,
		string(contents)).Scan(&sum, &recorded)
	return sum, recorded, err
}

// WantNotices makes GEM write notices of these kinds, and of these marks of budgets, in percent.
func WantNotices(ctx context.Context, db DB, kinds []string, marks []int16) error {
	_, err := db.Exec(ctx, "select gem.want_notices($1, $2)", kinds, marks)
	return err
}

// StopNotices stops notices until a worker with a notify.json starts, and returns how many were dropped.
func StopNotices(ctx context.Context, db DB) (dropped int64, err error) {
	err = db.QueryRow(ctx, "select gem.stop_notices()").Scan(&dropped)
	return dropped, err
}

// TakeNotices removes up to most notices and returns them, unless a later start used another version of notify.json.
// The transaction must also add them to batches.
func TakeNotices(ctx context.Context, tx pgx.Tx, version string, most int) ([]NoticeRow, error) {
	rows, _ := tx.Query(ctx, "select kind, subject, tool, code, at, about from gem.take_notices($1, $2)",
		most, version)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[NoticeRow])
}

// AddToBatches adds notices to batches, a list in the form of gem.batch_notices.
func AddToBatches(ctx context.Context, tx pgx.Tx, batches json.RawMessage) error {
	_, err := tx.Exec(ctx, "select gem.batch_notices($1)", batches)
	return err
}

// DueNotices locks and returns up to most batches of these channels whose delivery is due.
func DueNotices(ctx context.Context, tx pgx.Tx, channels []string, most int) ([]DueNotice, error) {
	rows, _ := tx.Query(ctx, "select id, channel, count, first_at, last_at, notice from gem.due_notices($1, $2)",
		channels, most)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[DueNotice])
}

// SendNotice inserts the call that delivers a batch, and empties the batch. If the call cannot be inserted, problem is
// the reason, and the batch is tried again later.
func SendNotice(ctx context.Context, tx pgx.Tx, batch int64, id, tool string, input json.RawMessage) (problem string,
	err error) {
	err = tx.QueryRow(ctx, "select coalesce(gem.send_notice($1, $2, $3, $4), '')", batch, id, tool, input).Scan(&problem)
	return problem, err
}
