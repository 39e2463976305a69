package audit_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gemworker/gem/audit"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/testdb"
)

// extracted are runs of extract.run as they end, one in each unit with a child that read its text, and a document in
// parts.
func extracted(t *testing.T, env *handlertest.Env) {
	t.Helper()
	accents := strings.Repeat("é", 3998) + "😀Beta\nGamma"
	for _, r := range []struct {
		text, unit  string
		start, tail int // of Beta, and of the smile
	}{{"Alpha Beta", "utf16", 6, 0}, {accents, "utf16", 4000, 3998}, {accents, "codepoint", 3999, 3998},
		{accents, "byte", 8000, 7996}} {
		h := handler{t: t, env: env}
		input, err := json.Marshal(map[string]any{"text": r.text})
		if err != nil {
			t.Fatal(err)
		}
		h.call = env.Insert(handlertest.Call{Tool: "extract.run", Input: string(input), Priority: 850})
		h.claim()
		h.do(`select gem.wait($1, 1, 'd', jsonb_build_array(jsonb_build_object('id', gen_random_uuid(), 'name', 'shard 0',
			'tool', 'extract.shard', 'input', '{}'::jsonb)),
			'call', array['shard 0'], 1, '{}', null)`)
		h.claim()
		h.of("shard 0", `select gem.finish($1, 1, 'd', 'succeeded', '{}', '{"idempotency": {"mode": "none", "hit": false}}',
			'x')`)
		h.claim()
		result := fmt.Sprintf(
			`{"document": {"sha256": "%x", "offsets": %q}, "extractions": [{"class": "name", "quote": "Beta", "start": %d, "end": %d, "shard": 0}%s],
			"shards": [{"index": 0, "status": "read", "cached": false, "call_id": "CHILD"}, {"index": 1, "status": "blank", "cached": false}]}`,
			sha256.Sum256([]byte(r.text)), r.unit, r.start, r.start+4,
			map[bool]string{true: fmt.Sprintf(`, {"class": "name", "quote": "😀Beta", "start": %d, "end": %d, "shard": 0}`,
				r.tail, r.start+4)}[r.tail > 0])
		testdb.Exec(t, env.DB, `select gem.finish(p.id, p.attempt, 'd', 'succeeded', replace($2, 'CHILD', c.id::text)::jsonb,
			'{"idempotency": {"mode": "none", "hit": false}}', 'x') from core_tool_calls p
				join core_tool_calls c on c.parent_call_id = p.id where p.id = $1`, h.call, result)
	}
	testdb.Exec(t, env.DB, `insert into extract_documents (id) values ('00000000-0000-4000-8000-000000000001')`)
	testdb.Exec(t, env.DB, `insert into extract_document_parts (document_id, text)
		values ('00000000-0000-4000-8000-000000000001', 'é'), ('00000000-0000-4000-8000-000000000001', 'x')`)
}

func TestADatabaseWithoutDocumentsIsNotAskedForThem(t *testing.T) {
	t.Parallel()
	report, err := audit.Database(t.Context(), testdb.Pool(t, testdb.New(t)), audit.Options{})
	if err != nil || report.Faults != 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	for _, c := range report.Checks {
		if c.Check == "extract-part" || c.Check == "guards" && c.LookedAt != 38 || c.Error != "" {
			t.Errorf("%+v", c)
		}
	}
}
