package audit_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/google/go-cmp/cmp"
)

// The rules for a call, its receipt and its journal stand in SQL and in Go. Here they judge the same calls: random walks
// through the picture of the states, most of them with something changed afterwards.
func TestADatabaseAndAnArchiveAreJudgedAlike(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	walk := &walker{rand.New(rand.NewPCG(seed, 0))}
	var all []object
	for range 4000 {
		all = append(all, walk.call())
	}

	db := testdb.Pool(t, testdb.New(t, migrations.Sources(builtin.Domains()...)...))
	for _, sql := range []string{
		"alter table core_tool_calls disable trigger user", "alter table core_tool_receipts disable trigger user",
		"drop index gem_calls_one_running_per_key, gem_receipts_one_success_per_key",
	} {
		execute(t, db, sql)
	}
	encoded, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	for _, sql := range []string{
		"set local session_replication_role = replica",
		"create temp table generated on commit drop as select * from jsonb_to_recordset('" + strings.ReplaceAll(string(encoded), "'", "''") + "') g (call jsonb, receipt jsonb, events jsonb)",
		`insert into core_tool_calls overriding user value select c.* from generated, jsonb_populate_record(null::core_tool_calls, call) c`,
		`insert into core_tool_receipts select r.* from generated, jsonb_populate_record(null::core_tool_receipts, receipt) r where receipt is not null`,
		`insert into core_tool_events select e.* from generated, jsonb_populate_recordset(null::core_tool_events, events) e`,
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%.200s: %v", sql, err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	var archive strings.Builder
	final := map[string]bool{}
	rows, err := db.Query(t.Context(), `
		select c.id::text, c.status in ('succeeded', 'failed', 'not_configured'), jsonb_build_object('gem_archive', 1, 'call', to_jsonb(c), 'receipt', to_jsonb(r),
			'events', (select jsonb_agg(to_jsonb(e) order by e.seq) from core_tool_events e where e.call_id = c.id))::text
		from core_tool_calls c left join core_tool_receipts r on r.call_id = c.id`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var id, line string
		var isFinal bool
		if err := rows.Scan(&id, &isFinal, &line); err != nil {
			t.Fatal(err)
		}
		final[id] = isFinal
		archive.WriteString(line + "\n")
	}

	options := audit.Options{Examples: 1_000_000}
	ofDatabase, err := audit.Database(t.Context(), db, 0, options)
	if err != nil {
		t.Fatal(err)
	}
	ofArchive, err := audit.Archive(t.Context(), strings.NewReader(archive.String()), options)
	if err != nil {
		t.Fatal(err)
	}
	compared := map[string]bool{}
	for _, c := range ofArchive.Checks {
		// An archive is of finished calls, and may have a hit without its source.
		compared[c.Check] = c.Check != "receipt-early" && c.Check != "receipt-missing" && c.Check != "hit-source"
	}
	byCall := func(r *audit.Report) map[string][]string {
		found := map[string][]string{}
		for check, findings := range reported(r) {
			for _, f := range findings {
				if compared[check] && (final[f.ID] || strings.HasPrefix(check, "journal-")) {
					found[f.ID] = append(found[f.ID], check)
				}
			}
		}
		for _, checks := range found {
			slices.Sort(checks)
		}
		return found
	}
	inDatabase, inArchive := byCall(ofDatabase), byCall(ofArchive)
	t.Logf("seed %d: %d calls, %d with faults", seed, len(all), len(inDatabase))
	differ := 0
	for _, g := range all {
		id := g["call"].(object)["id"].(string)
		if diff := cmp.Diff(inDatabase[id], inArchive[id]); diff != "" && differ < 5 {
			differ++
			shown, _ := json.MarshalIndent(g, "", " ")
			t.Errorf("-database +archive:\n%s%s", diff, shown)
		}
	}
	kinds := map[string]int{}
	for _, checks := range inDatabase {
		for _, c := range checks {
			kinds[c]++
		}
	}
	for _, check := range []string{"journal-gaps", "journal-order", "journal-holder", "journal-replay", "journal-receipt", "receipt-status", "receipt-error",
		"receipt-attempt", "receipt-result", "effects-form", "hit-effects", "key-computed"} {
		if kinds[check] == 0 {
			t.Errorf("no call broke %s: %v", check, slices.Sorted(maps.Keys(kinds)))
		}
	}
	if sound := len(all) - len(inDatabase); sound < len(all)/10 {
		t.Errorf("only %d of %d calls were sound", sound, len(all))
	}
}

type object = map[string]any

type walker struct{ *rand.Rand }

func (w *walker) id() string {
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", w.Uint32(), w.Uint64()&0xffffffffffff)
}

func (w *walker) chance(percent int) bool { return w.IntN(100) < percent }

func pick[T any](w *walker, of ...T) T { return of[w.IntN(len(of))] }

// call is a call with its receipt and its journal.
func (w *walker) call() object {
	id, phone := w.id(), fmt.Sprint(w.IntN(1000))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func() string {
		now = now.Add(time.Millisecond * time.Duration(1+w.IntN(10)))
		return now.Format(time.RFC3339Nano)
	}
	call := object{"id": id, "tool_name": "leads.create", "input": object{"phone": phone}, "status": "queued", "attempt": 0, "retries": 0, "losses": 0,
		"priority": 0, "created_at": at(), "updated_at": at()}
	var events []object
	add := func(event string, worker any, data object) string {
		moment := at()
		events = append(events, object{"call_id": id, "seq": len(events) + 1, "at": moment, "event": event, "attempt": call["attempt"], "worker_id": worker, "data": data})
		return moment
	}
	free := func(status string) {
		call["status"], call["claimed_by"], call["claimed_at"], call["computed_key"] = status, nil, nil, nil
	}
	call["run_at"] = at()
	key := any(`leads.create:phone="` + phone + `"`)
	var receipt object
	end := func(status string, worker any) {
		receiptID := w.id()
		result, callError := object{"lead_id": "x"}, any(nil)
		switch status {
		case "failed":
			e := object{"error_code": "cancelled", "message": "stop", "details": nil}
			result, callError = object{"error": e}, e
		case "not_configured":
			result = object{"status": "not_configured", "reason": "no"}
		}
		moment := add(status, worker, object{"receipt_id": receiptID})
		call["status"], call["error"] = status, callError
		receipt = object{"id": receiptID, "call_id": id, "tool_name": "leads.create", "status": status, "result": result, "created_at": moment,
			"attempt": call["attempt"], "worker_id": call["claimed_by"], "idempotency_key": call["computed_key"],
			"effects": object{"idempotency": object{"mode": "keyed", "key_field": "phone", "hit": false}, "db_reads": []any{}}}
		if worker == nil && call["cancel_requested_at"] == nil {
			call["cancel_requested_at"] = moment
		}
	}

	if w.chance(20) {
		status := pick(w, "queued", "running", "succeeded", "failed")
		if status != "queued" {
			call["attempt"], call["claimed_by"], call["claimed_at"] = 1, "old", "2020-01-01T00:00:00Z"
		}
		call["status"] = status
		add("imported", nil, object{"status": status, "was": "x", "claimed_by": call["claimed_by"], "run_at": call["run_at"], "priority": 0})
		if status == "succeeded" || status == "failed" {
			receipt = object{"id": w.id(), "call_id": id, "tool_name": "x", "status": status, "attempt": 1, "created_at": at(), "result": "x"}
		}
	} else {
		add("queued", nil, object{"run_at": call["run_at"], "priority": 0})
	}
	for receipt == nil && !w.chance(12) {
		worker, _ := call["claimed_by"].(string)
		switch call["status"] {
		case "queued":
			if w.chance(10) {
				end("failed", nil)
				continue
			}
			call["attempt"] = call["attempt"].(int) + 1
			call["status"], call["claimed_by"] = "running", fmt.Sprint("w-", w.IntN(3))
			call["claimed_at"] = add("claimed", call["claimed_by"], nil)
		case "waiting":
			if w.chance(20) {
				call["computed_key"] = nil
				end("failed", nil)
				continue
			}
			add("woken", "w-9", nil)
			free("queued")
		case "running":
			switch what := w.IntN(10); {
			case what == 0 && call["cancel_requested_at"] == nil:
				call["cancel_requested_at"] = add("cancel_requested", nil, nil)
			case what == 1:
				add("waiting", worker, object{"key": key, "held_by": w.id()})
				free("waiting")
				call["computed_key"] = key
			case what == 2:
				again := at()
				add("retried", worker, object{"run_at": again, "error": nil})
				free("queued")
				call["run_at"], call["retries"] = again, call["retries"].(int)+1
			case what == 3:
				add("released", worker, nil)
				free("queued")
			case what == 4:
				add("lost", "w-9", object{"lost_worker": worker})
				free("queued")
				call["losses"] = call["losses"].(int) + 1
			default:
				call["computed_key"] = key
				end(pick(w, "succeeded", "failed", "not_configured"), worker)
			}
		}
	}
	call["events"] = len(events)
	for range w.IntN(3) {
		w.change(call, receipt, &events)
	}
	g := object{"call": call, "events": events}
	if receipt != nil {
		g["receipt"] = receipt
	}
	return g
}

// change breaks something, or may.
func (w *walker) change(call, receipt object, events *[]object) {
	set := func(o object, name string, values ...any) {
		if o != nil {
			o[name] = values[w.IntN(len(values))]
		}
	}
	var e object
	if len(*events) > 0 {
		e = (*events)[w.IntN(len(*events))]
	}
	const later = "2026-02-01T00:00:00.5Z"
	switch w.IntN(7) {
	case 0:
		if i := w.IntN(len(*events) + 1); i < len(*events) {
			*events = slices.Delete(*events, i, i+1)
		}
	case 1:
		set(e, "event", "queued", "claimed", "waiting", "woken", "retried", "released", "lost", "cancel_requested", "succeeded", "failed", "imported", "nonsense")
	case 2:
		set(e, pick(w, "attempt", "seq_is_kept"), 0, 1, 2)
	case 3:
		set(e, "worker_id", nil, "w-0", "w-1", "w-9", "old")
	case 4:
		set(e, pick(w, "at", "data"), nil, nil)
		set(e, "data", nil, []any{}, object{}, object{"run_at": later, "priority": 0}, object{"status": "queued", "priority": 1}, object{"lost_worker": "w-1"},
			object{"key": "x"}, object{"receipt_id": "x"}, object{"status": "running", "claimed_by": "w-0", "run_at": later})
		if e != nil {
			e["at"] = later
		}
	case 5:
		switch column := pick(w, "status", "attempt", "claimed_by", "claimed_at", "retries", "losses", "run_at", "priority", "cancel_requested_at", "computed_key",
			"events", "error", "tool_name", "input"); column {
		case "status":
			set(call, column, "queued", "running", "waiting", "succeeded", "failed", "not_configured")
		case "attempt", "retries", "losses", "priority", "events":
			set(call, column, 0, 1, 2, 3)
		case "claimed_at", "cancel_requested_at":
			set(call, column, nil, later)
		case "run_at":
			set(call, column, later)
		case "error":
			set(call, column, nil, object{}, object{"error_code": "cancelled", "message": "stop", "details": nil})
		case "input":
			set(call, column, object{}, []any{}, object{"phone": 1}, object{"phone": "1"})
		default:
			set(call, column, nil, "x", "w-0")
		}
	case 6:
		switch column := pick(w, "status", "result", "effects", "attempt", "worker_id", "idempotency_key", "created_at", "tool_name", "replay_of"); column {
		case "status":
			set(receipt, column, "succeeded", "failed", "not_configured", "odd")
		case "result":
			set(receipt, column, object{}, []any{}, object{"error": object{"error_code": "x", "message": "y"}}, object{"error": object{"error_code": "x"}},
				object{"status": "not_configured", "reason": "r"}, object{"status": "not_configured"})
		case "effects":
			set(receipt, column, nil, object{}, []any{}, object{"db_writes": object{}}, object{"db_writes": nil}, object{"idempotency": nil}, object{"idempotency": object{"hit": true}},
				object{"idempotency": object{"mode": "keyed"}}, object{"idempotency": object{"mode": "safe-retry"}}, object{"idempotency": object{"mode": "keyed", "key_field": "phone", "hit": true}})
		case "attempt":
			set(receipt, column, 0, 1, 2)
		case "created_at":
			set(receipt, column, later)
		case "replay_of":
			set(receipt, column, w.id())
		case "tool_name":
			set(receipt, column, "x", "leads.create")
		default:
			set(receipt, column, nil, "x", "w-0")
		}
	}
}
