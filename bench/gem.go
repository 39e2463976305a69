package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/pgpool"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// gemWorker is GEM as it ships: validation of input and output, the journal, the receipt, and its log at the level info.
type gemWorker struct{}

func (gemWorker) Name() string { return "gem" }

func (gemWorker) Migrate(ctx context.Context, db *pgxpool.Pool) error {
	if _, err := db.Exec(ctx, rowTable); err != nil {
		return err
	}
	return migrations.Up(ctx, db.Config().ConnString())
}

func (gemWorker) Backlog(ctx context.Context, db *pgxpool.Pool, n int, withRow bool) error {
	_, err := db.Exec(ctx, `insert into core_tool_calls (tool_name, input)
		select $1, jsonb_set($2::jsonb, '{customer}', to_jsonb('customer-' || i)) from generate_series(1, $3::int) i`,
		tool(withRow), jsonOf(newPayload(0, withRow)), n)
	return err
}

func (gemWorker) Insert(ctx context.Context, db *pgxpool.Pool, withRow bool) (id string, err error) {
	err = db.QueryRow(ctx, `insert into core_tool_calls (tool_name, input) values ($1, $2) returning id::text`,
		tool(withRow), jsonOf(newPayload(0, withRow))).Scan(&id)
	return id, err
}

func (gemWorker) Ended() string {
	return `select call_id::text, pg_xact_commit_timestamp(xmin) from core_tool_receipts where status = 'succeeded'`
}

func (gemWorker) Start(ctx context.Context, w work) (stop func(), err error) {
	tools, err := registry.Parse([]byte(benchRegistry))
	if err != nil {
		return nil, err
	}
	bound, err := handlers.Bind(Bench{w.Handled})
	if err != nil {
		return nil, err
	}
	calls, err := pgpool.Open(ctx, w.URL, pgpool.Options{MaxConns: int32(w.Conns)})
	if err != nil {
		return nil, err
	}
	control, err := pgpool.Open(ctx, w.URL, pgpool.Options{MaxConns: 2})
	if err != nil {
		return nil, err
	}
	listen := w.URL
	if w.Poll {
		listen = ""
	}
	// Written and thrown away: what a log costs the worker is its own part.
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zap.InfoLevel))
	running, err := worker.New(worker.Options{Calls: calls, Control: control, ListenURL: listen, Registry: tools, Handlers: bound,
		Concurrency: w.Slots, Log: log})
	if err != nil {
		return nil, err
	}
	working, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- running.Run(working) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			fmt.Println("gem:", err)
		}
		calls.Close()
		control.Close()
	}, nil
}

func tool(withRow bool) string {
	if withRow {
		return "bench.write"
	}
	return "bench.answer"
}

func jsonOf(v any) string {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

// Bench is the domain of the two tools.
type Bench struct{ handled *atomic.Int64 }

// Write is bench.write: one row, in the transaction of its receipt.
func (b Bench) Write(ctx context.Context, tx handlers.Tx, call *handlers.Call, in payload) (result, error) {
	out := result{Status: "noted"}
	if err := tx.QueryRow(ctx, rowSQL, call.ID, in.Note).Scan(&out.NoteID); err != nil {
		return result{}, err
	}
	call.Wrote("bench_rows", handlers.Insert, out.NoteID)
	b.handled.Add(1)
	return out, nil
}

// Answer is bench.answer: no row.
func (b Bench) Answer(_ context.Context, _ *handlers.Call, _ payload) (result, error) {
	b.handled.Add(1)
	return result{NoteID: "none", Status: "answered"}, nil
}

// benchRegistry describes both with schemas as a tool has them.
var benchRegistry = fmt.Sprintf(`{"version": "1.0.0", "tools": [%s, %s]}`, benchTool("bench.write"), benchTool("bench.answer"))

func benchTool(name string) string {
	return `{"name": "` + name + `", "description": "For measuring.", "permissions": ["write:db"],
		"input_schema": {"type": "object", "required": ["customer", "note"], "additionalProperties": false, "properties": {
			"customer": {"type": "string", "minLength": 1, "maxLength": 200},
			"note": {"type": "string", "maxLength": 10000},
			"amount": {"type": "number", "minimum": 0},
			"tags": {"type": "array", "maxItems": 20, "items": {"type": "string", "maxLength": 50}},
			"with_row": {"type": "boolean"}}},
		"output_schema": {"type": "object", "required": ["note_id", "status"], "additionalProperties": false, "properties": {
			"note_id": {"type": "string", "minLength": 1}, "status": {"type": "string", "enum": ["noted", "answered"]}}},
		"idempotency": {"mode": "safe-retry", "key_field": null}, "timeout_ms": 30000, "receipt_fields": ["result.note_id"]}`
}
