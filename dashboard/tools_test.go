package dashboard_test

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestAToolIsShownByTheRegistriesThatHaveIt(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	db := testdb.Pool(t, database)
	registry := func(version, more string) string {
		return `{"version": "` + version + `", "tools": [
			{"name": "shop.refund", "description": ` + quoted(hostile) + `, "input_schema": {"type": "object", "properties": {"n": {"maximum": 12345678901234567890.123}}},
				"permissions": ["write:db"], "idempotency": {"mode": "keyed", "key_field": "order"}, "timeout_ms": 1000` + more + `},
			{"name": "crm.find.json", "description": "Finds.", "permissions": []}]}`
	}
	for _, sql := range []string{
		`select gem.record_registry('1', repeat('a', 64), '` + registry("1", "") + `')`,
		`select gem.record_registry('2', repeat('b', 64), '` + registry("2", `, "retry": {"max_attempts": 5}`) + `')`,
		`select gem.record_domains('7', repeat('c', 64),
			'{"version": "7", "crm": {"http": {"url": "https://secret.example/"}}}')`,
		`select gem.start_worker('w1', 10, 'v', '1', '1 hour')`,
		`select gem.start_worker('w2', 10, 'v', '2', '1 hour')`,
		`insert into core_tool_calls (tool_name) values ('shop.refund'), ('shop.refund'), ('` + hostile + `')`,
		`select gem.claim('w1', 3, false)`,
		`select gem.finish(id, 1, 'w1', 'succeeded', '{}', '{}', '1') from core_tool_calls where tool_name = 'shop.refund'`,
		`select gem.finish(id, 1, 'w1', 'succeeded', '{}', '{}', '1') from core_tool_calls where tool_name <> 'shop.refund'`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	operator, viewer := serve(t, database, true), serve(t, database, false)
	shows(t, viewer, "/tools", 200, []string{"shop.refund", "2 workers", "2 registries", "keyed", "crm.find.json",
		"not registered", "&lt;script&gt;"})
	shows(t, viewer, "/tools?find=crm", 200, []string{"crm.find.json"}, "shop.refund")
	shows(t, viewer, "/tools?find=<b>", 200, []string{"No tool has “&lt;b&gt;”"})
	body := shows(t, operator, "/tools/shop.refund", 200,
		[]string{"Living workers run with different entries", "<code>retry</code> differ", "<strong>2</strong> succeeded",
			"12345678901234567890.123", "the workers&#39; program", "write:db", "may call it", "By day, in UTC"})
	if strings.Count(body, "<td data-label=\"Version\">") != 2 || !strings.Contains(body, "<code>retry</code> changed") {
		t.Errorf("the registries: %s", body)
	}
	shows(t, operator, "/tools/crm.find.json", 200,
		[]string{"crm.find.json", "a webhook, by domains.json 7", "No call to this tool ended"}, "secret.example")
	shows(t, viewer, "/tools/crm.find.json", 200, nil, "webhook")
	shows(t, viewer, "/tools/shop.nothing", 404, []string{"This tool does not exist"})
	shows(t, viewer, "/tools/"+url.PathEscape(hostile), 200, []string{"No registry in force has this tool"})
	shows(t, viewer, "/tools/%00", 404, nil)

	var all []struct{ Name string }
	if _, list := get(t, viewer, "/tools.json"); json.Unmarshal([]byte(list), &all) != nil || len(all) != 3 {
		t.Errorf("%s", list)
	}
	var one struct{ Entries []struct{ Version string } }
	if _, tool := get(t, viewer, "/tools.json?name=shop.refund"); json.Unmarshal([]byte(tool), &one) != nil ||
		len(one.Entries) != 2 {
		t.Errorf("%s", tool)
	}
}

// quoted returns a text as JSON.
func quoted(text string) string {
	encoded, _ := json.Marshal(text)
	return string(encoded)
}
