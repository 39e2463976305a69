package supabase_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/supabase"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/receipts"
)

// code returns the code blocks of a page in one language.
func code(t *testing.T, file, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?s)\n```"+language+"\n(.*?)\n```\n").FindAllStringSubmatch(string(text),
		-1) {
		blocks = append(blocks, found[1])
	}
	return blocks
}

func TestTheCodeOfTheDocumentsRuns(t *testing.T) {
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	handlertest.Start(t, handlertest.Options{Database: p.DatabaseURL, Domains: builtin.Domains(),
		Registry: gem.BuiltInRegistry})
	c, ada := p.Client(), p.User("ada")

	var script []string
	for _, block := range code(t, "../../../docs/supabase.md", "js") {
		if !strings.Contains(block, "createClient(") && !strings.Contains(block, ".channel(") { // those blocks need Supabase
			script = append(script, block)
		}
	}
	if len(script) != 6 {
		t.Fatalf("docs/supabase.md has %d blocks that run, want 6", len(script))
	}
	script = append(script,
		`return [error, receipt.status, calls.map(c => c.status), mine.length, journal.map(e => e.event), ended, receipts.some(r => r.call_id === id), question.text, question.schema, answered, refused, tools.some(t => t.name === 'os.create_note'), names[0]]`)
	want := `[null,"succeeded",["queued","queued"],3,["queued","claimed","succeeded"],"succeeded",true,"Which day suits you?",{"type":"string"},"answered",null,true,{"name":"leads.add_photos_link"}]`
	if got := c.Run(ada, strings.Join(script, "\n")); string(got) != want {
		t.Errorf("docs/supabase.md: got %s, want %s", got, want)
	}

	clients := code(t, "../../../docs/clients.md", "js")
	// these blocks are whole programs
	clients = slices.DeleteFunc(clients, func(block string) bool { return strings.Contains(block, "createClient(") })
	if len(clients) != 1 {
		t.Fatalf("docs/clients.md has %d blocks that run here, want 1", len(clients))
	}
	turn := `const use = {name: 'os_create_note', input: {title: 'a', domain: 'both', content: 'b'}}, callId = crypto.randomUUID()` + "\n" + clients[0] +
		"\nreturn [nameOf.os_create_note, (await supabase.from('core_tool_calls').select('tool_name').eq('id', " +
		"callId).single()).data]"
	if got := c.Run(ada, turn); string(got) != `["os.create_note",{"tool_name":"os.create_note"}]` {
		t.Errorf("docs/clients.md: got %s", got)
	}

	readme := code(t, "../../../README.md", "js")
	if len(readme) != 1 {
		t.Fatalf("README.md has %d blocks, want 1", len(readme))
	}
	var id string
	if err := json.Unmarshal(c.Run(ada, readme[0]+"\nreturn call.id"), &id); err != nil {
		t.Errorf("README.md: %v", err)
	}

	sql := code(t, "../../../docs/supabase.md", "sql")
	if len(sql) != 4 {
		t.Fatalf("docs/supabase.md has %d blocks of SQL, want 4", len(sql))
	}
	for _, block := range sql {
		p.Exec("set role gem_test_supabase_owner; " + block + "; reset role")
	}
	for _, q := range []struct{ who, token, query, outcome, data string }{
		{"ada", ada, `from('notes').select('title').order('created_at').limit(1)`, "200", `[{"title":"Call back"}]`},
		{"grace", p.User("grace"), `from('notes').select('title')`, "200", `[]`},
		{"ada", ada, `rpc('enqueue_tool_call', {tool_name: 'os.health_check'})`, "200", ""},
		{"ada", ada, `rpc('enqueue_tool_call', {tool_name: 'http.request'})`, "403 42501", ""},
		{"ada", ada, `from('core_tool_calls').insert({tool_name: 'http.request'})`, "403 42501", ""},
		{"ada", ada, `rpc('enqueue_tool_call', {tool_name: 'os.health_check', priority: 1})`, "400 23514", ""},
		{"a visitor", "", `from('core_tool_calls').insert({tool_name: 'leads.create', input: {}})`, "201", ""},
		{"a visitor", "", `from('core_tool_calls').insert({tool_name: 'os.create_note', input: {}})`, "401 42501", ""},
		{"a visitor", "", `from('core_tool_calls').insert({tool_name: 'leads.create', priority: 3})`, "401 42501", ""},
		{"a visitor", "", `from('core_tool_calls').select('id')`, "401 42501", ""},
	} {
		a := c.Query(q.token, q.query)
		if a.Outcome() != q.outcome || q.data != "" && string(a.Data) != q.data {
			t.Errorf("%s: %s: got %s %s %s, want %s %s", q.who, q.query, a.Outcome(), a.Message, a.Data, q.outcome, q.data)
		}
	}
}

// Supabase's own migrations folder may contain the file that gem migrate --print writes.
func TestThePrintedFileMayBeAppliedByOthersAndAgain(t *testing.T) {
	testdb.Long(t, "TestTheLifeOfACallAsItsFrontendSeesIt")
	t.Parallel()
	d := desk{supabase.Start(t, supabase.Options{NotMigrated: true}), t}
	var sql strings.Builder
	if err := migrations.Print(&sql, "", migrations.Options{}, migrations.Sources(builtin.Domains()...)...); err != nil {
		t.Fatal(err)
	}
	apply := func() {
		t.Helper()
		d.Exec("set role gem_test_supabase_owner;\n" + sql.String() + ";\nreset role")
	}
	apply()
	awaitFunctions(t, d.Project)
	d.must("ada", `rpc('enqueue_tool_call', {tool_name: 'a.b'})`, "200")
	applied := d.Value("select max(applied_at)::text from gem.migrations")
	d.Migrate()
	if got := d.Value("select max(applied_at)::text from gem.migrations"); got != applied {
		t.Error("gem migrate applied what was there")
	}
	d.must("ada", `from('core_tool_calls').select('id').then(r => ({...r, data: r.data.length}))`, "200")
	// The file also restores the grants.
	d.Exec("revoke all on all tables in schema public from authenticated; revoke all on all functions in schema public " +
		"from authenticated")
	d.must("ada", `rpc('enqueue_tool_call', {tool_name: 'a.b'})`, "403 42501")
	apply()
	d.must("ada", `rpc('enqueue_tool_call', {tool_name: 'a.b'})`, "200")
	d.must("ada", `from('core_tool_calls').insert({tool_name: 'a.b', traceparent: null}).select('id, status')`, "201")
}

// A user adds a document in parts, and a server starts an extraction for the user.
func TestTheCodeOfTheGuideToExtractionRuns(t *testing.T) {
	testdb.Long(t, "TestTheCodeOfTheDocumentsRuns")
	t.Parallel()
	p := supabase.Start(t, supabase.Options{})
	env := handlertest.Start(t, handlertest.Options{Database: p.DatabaseURL, Domains: builtin.Domains(),
		Registry: gem.BuiltInRegistry})
	c, js := p.Client(), code(t, "../../../docs/extract.md", "js")
	if len(js) != 2 {
		t.Fatalf("docs/extract.md has %d blocks, want 2", len(js))
	}
	var id string
	// Each part ends between the two halves of its last character.
	if err := json.Unmarshal(c.Run(p.User("ada"), "const text = ('x'.repeat(99_999) + '😀').repeat(2) + 'end'\n"+
		js[0]+"\nreturn document_id"), &id); err != nil {
		t.Fatal(err)
	}
	if got := p.Value("select string_agg(p.seq || ' ' || p.bytes, ', ' order by p.seq) || ' ' || d.created_by from "+
		"extract_documents d join extract_document_parts p on p.document_id = d.id where d.id = $1 group by d.created_by",
		id); got != "1 100003, 2 100003, 3 3 ada" {
		t.Errorf("got %s", got)
	}
	// Missing routes are reported after the document was read.
	for user, want := range map[string]receipts.Status{"ada": receipts.NotConfigured, "grace": receipts.Failed} {
		var call string
		body := "const [document_id, user] = ['" + id + "', '" + user + "']\nconst program = { instructions: 'Extract " +
			"dates.', classes: [{ name: 'date' }] }\n" + js[1] + "\nreturn run.id"
		if err := json.Unmarshal(c.Run(p.Server(), body), &call); err != nil {
			t.Fatal(err)
		}
		if r := env.Await(call); r.Status != want {
			t.Errorf("%s: %s %s", user, r.Status, r.Result)
		}
	}
	ada := p.User("ada")
	for _, q := range []struct{ who, token, query, outcome, data string }{
		{"ada", ada, `from('extract_document_parts').select('seq, sha256').eq('seq', 3)`, "200",
			`[{"seq":3,"sha256":"361e48d0308f20e32dba5fb56328baf18d72ef0ccb43b84f5c262d2a6a1fc6c8"}]`},
		{"grace", p.User("grace"), `from('extract_documents').select('id')`, "200", `[]`},
		{"grace", p.User("grace"), `from('extract_document_parts').insert({document_id: '` + id + `', text: 'x'})`,
			"409 23503", ""},
		{"ada", ada, `from('extract_document_parts').insert({document_id: '` + id + `', seq: 9, text: 'x'})`, "400 23514",
			""},
		{"ada", ada, `from('extract_documents').insert([{title: 'a'}, {title: 'b', id: null}]).select('title, created_by')`,
			"201", `[{"title":"a","created_by":"ada"},{"title":"b","created_by":"ada"}]`},
		{"ada", ada, `from('extract_documents').update({title: 'x'}).eq('id', '` + id + `')`, "403 42501", ""},
		{"ada", ada, `rpc('enqueue_tool_call', {tool_name: 'extract.run', input: {}})`, "403 42501", ""},
		{"ada", ada, `rpc('enqueue_tool_call', {tool_name: 'extract.add_document', input: {text: 'x'}})`, "200", ""},
		{"a visitor", "", `from('extract_documents').select('id')`, "401 42501", ""},
	} {
		a := c.Query(q.token, q.query)
		if a.Outcome() != q.outcome || q.data != "" && string(a.Data) != q.data {
			t.Errorf("%s: %s: got %s %s %s, want %s %s", q.who, q.query, a.Outcome(), a.Message, a.Data, q.outcome, q.data)
		}
	}
}
