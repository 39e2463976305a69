package builtin_test

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/handlers/wait"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/registry"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// notBuilt are the tools that are registered so that agents know of them, and answer not_configured.
var notBuilt = []string{"calendar.create_event", "integrations.google_drive.search", "quote.generate_pdf"}

func readRegistry(t *testing.T) (parsed *registry.Registry, raw map[string]any) {
	t.Helper()
	data, err := os.ReadFile("../../tools.registry.json")
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err = registry.Parse(data); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		t.Fatal(err)
	}
	return parsed, raw
}

// domains are those of the program gem.
func domains() []any { return append(builtin.Domains(), wait.Domain()) }

func bound(t *testing.T) *binding.Handlers {
	t.Helper()
	h, err := binding.Bind(domains()...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// methods are the handlers of the built-in domains by the folded names of their tools, such as leads.addphotoslink.
func methods() map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for _, domain := range binding.Domains(domains()...) {
		for method := range reflect.TypeOf(domain.Tools).Methods() {
			all[strings.ToLower(domain.Name()+"."+method.Name)] = method.Type
		}
	}
	return all
}

func methodName(tool string) string {
	domain, method, _ := strings.Cut(tool, ".")
	return domain + "." + strings.NewReplacer("_", "", ".", "").Replace(method)
}

func TestEveryToolHasAHandlerAndEveryHandlerATool(t *testing.T) {
	t.Parallel()
	reg, _ := readRegistry(t)
	h := bound(t)
	unregistered := methods()
	var without []string
	for _, tool := range reg.Tools() {
		delete(unregistered, methodName(tool.Name))
		if _, ok := h.For(tool.Name); !ok {
			without = append(without, tool.Name)
		}
	}
	slices.Sort(without)
	if diff := cmp.Diff(notBuilt, without); diff != "" {
		t.Errorf("tools without a handler (-want +got):\n%s", diff)
	}
	for name := range unregistered {
		t.Errorf("the handler %s has no tool in tools.registry.json", name)
	}
}

func TestAHandlerKnowsItsFileAndFunction(t *testing.T) {
	t.Parallel()
	h := bound(t)
	for tool, want := range map[string]string{
		"leads.create":     "leads/leads.go Leads.Create",
		"os.create_task":   "os/tasks.go OS.CreateTask",
		"comms.send_sms":   "comms/sms.go Comms.SendSMS",
		"http.request":     "web/http.go HTTP.Request",
		"entity.search":    "entity/entity.go Entity.Search",
		"os.health_check":  "os/os.go OS.HealthCheck",
		"comms.send_email": "comms/email.go Comms.SendEmail",
	} {
		found, ok := h.For(tool)
		if !ok {
			t.Errorf("%s: no handler", tool)
			continue
		}
		if got := found.File + " " + found.Func; got != want {
			t.Errorf("%s: got %s, want %s", tool, got, want)
		}
	}
}

func TestOnlyHandlersWithEffectsOutsideRunOutsideTheTransaction(t *testing.T) {
	t.Parallel()
	reg, _ := readRegistry(t)
	h := bound(t)
	var outside []string
	for _, tool := range reg.Tools() {
		if found, ok := h.For(tool.Name); ok && !found.Transactional && !found.Durable {
			outside = append(outside, tool.Name)
		}
	}
	slices.Sort(outside)
	if diff := cmp.Diff([]string{"comms.send_email", "comms.send_sms", "http.request"}, outside); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Frontends that were written for the earlier GEM rely on these: input fields (! is required), limits, mode and
// timeout.
func TestToolsKeepTheContract(t *testing.T) {
	t.Parallel()
	contract := map[string]string{
		"os.health_check": " | safe-retry 8000",
		"os.create_note": "content! domain!=business,personal,both entity_refs title!<=140 | none " +
			"12000",
		"os.search_notes": "domain=business,personal,both limit=1..50 query!<=240 | safe-retry 15000",
		"os.create_task": "context_ref description domain!=business,personal,both " +
			"due_at:date-time priority=low,normal,high title!<=200 | none 12000",
		"os.update_task":   "patch task_id!>=1 | safe-retry 12000",
		"os.complete_task": "note task_id!>=1 | safe-retry 10000",
		"os.defer_task":    "due_at!:date-time reason task_id!>=1 | safe-retry 10000",
		"os.list_tasks": "domain=business,personal,both limit=1..100 status=open,done,all | " +
			"safe-retry 12000",
		"os.create_reminder": "context_ref domain=business,personal,both remind_at!:date-time " +
			"title!<=200 | none 12000",
		"os.audit_log_search": "call_id>=1 event_type limit=1..100 query since:date-time | safe-retry " +
			"15000",
		"os.get_state_snapshot":     "domain!=business,personal,both | safe-retry 12000",
		"os.refresh_state_snapshot": "domain!=business,personal,both since:date-time | safe-retry 30000",
		"leads.create": "email name! notes phone!>=1 " +
			"source=gmb,google_ads,meta,referral,repeat,other suburb! | keyed phone 15000",
		"leads.update_stage": "lead_id!>=1 notes " +
			"stage!=new,contacted,inspection_scheduled,quoted,won,lost | safe-retry 12000",
		"leads.add_source": "campaign lead_id!>=1 source!=gmb,google_ads,meta,referral,repeat,other " +
			"| safe-retry 12000",
		"leads.add_photos_link": "lead_id!>=1 links! | none 12000",
		"leads.list_by_stage": "limit=1..100 source=gmb,google_ads,meta,referral,repeat,other " +
			"stage=new,contacted,inspection_scheduled,quoted,won,lost suburb | safe-retry 15000",
		"leads.mark_lost": "lead_id!>=1 notes reason!<=240 | safe-retry 12000",
		"entity.create": "contact entity_type!=client,supplier,partner,friend,lead,other " +
			"name!<=200 notes | none 15000",
		"entity.update": "entity_id!>=1 patch! | safe-retry 15000",
		"entity.search": "entity_type=client,supplier,partner,friend,lead,other limit=1..50 " +
			"query! | safe-retry 15000",
		"entity.get": "entity_id!>=1 | safe-retry 12000",
		"entity.add_interaction": "details entity_id!>=1 " +
			"interaction_type!=call,sms,email,meeting,site_visit,other occurred_at:date-time summary!<=400 | none 15000",
		"comms.send_email": "body! context_ref! subject!<=160 template_id to!:email | safe-retry " +
			"30000",
		"comms.send_sms": "context_ref! message!<=1000 template_id to! | safe-retry 20000",
		"comms.log_call_outcome": "context_ref entity_id!>=1 notes " +
			"outcome!=answered,no_answer,left_message,busy,other | none 15000",
		"comms.create_followup_task_from_message": "context_ref! due_at:date-time title! | none 15000",
		"http.request": "body headers method!=GET,POST,PUT,PATCH,DELETE,HEAD url!>=1 | none 30000",
		"calendar.create_event": "attendees description end_at!:date-time location start_at!:date-time " +
			"title! | none 20000",
		"quote.generate_pdf":               "quote_id!>=1 | safe-retry 30000",
		"integrations.google_drive.search": "limit=1..50 query! | safe-retry 20000",
	}
	_, raw := readRegistry(t)
	got := map[string]string{}
	for _, entry := range raw["tools"].([]any) {
		tool := entry.(map[string]any)
		if name := tool["name"].(string); contract[name] != "" { // others may be added
			got[name] = summary(tool)
		}
	}
	if diff := cmp.Diff(contract, got); diff != "" {
		t.Errorf("(-contract +registry):\n%s", diff)
	}
}

func summary(tool map[string]any) string {
	input := tool["input_schema"].(map[string]any)
	properties, _ := input["properties"].(map[string]any)
	required, _ := input["required"].([]any)
	var fields []string
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		field, p := name, properties[name].(map[string]any)
		if slices.Contains(required, any(name)) {
			field += "!"
		}
		if values, ok := p["enum"].([]any); ok {
			var words []string
			for _, v := range values {
				words = append(words, v.(string))
			}
			field += "=" + strings.Join(words, ",")
		}
		if format, ok := p["format"].(string); ok {
			field += ":" + format
		}
		if n, ok := p["maxLength"]; ok {
			field += "<=" + number(n)
		}
		if n, ok := p["minLength"]; ok {
			field += ">=" + number(n)
		}
		if n, ok := p["minimum"]; ok {
			field += "=" + number(n) + ".." + number(p["maximum"])
		}
		fields = append(fields, field)
	}
	idempotency := tool["idempotency"].(map[string]any)
	mode := idempotency["mode"].(string)
	if key, ok := idempotency["key_field"].(string); ok {
		mode += " " + key
	}
	return strings.Join(fields, " ") + " | " + mode + " " + number(tool["timeout_ms"])
}

func number(v any) string {
	data, _ := json.Marshal(v)
	return string(data)
}

func TestSchemasAndStructsHaveTheSameFields(t *testing.T) {
	t.Parallel()
	_, raw := readRegistry(t)
	all := methods()
	for _, entry := range raw["tools"].([]any) {
		tool := entry.(map[string]any)
		name := tool["name"].(string)
		method, ok := all[methodName(name)]
		if !ok {
			continue // not built
		}
		sameFields(t, name+" input", tool["input_schema"].(map[string]any), method.In(method.NumIn()-1))
		sameFields(t, name+" output", tool["output_schema"].(map[string]any), method.Out(0))
	}
}

// sameFields compares a schema with a type where both say which fields there are.
func sameFields(t *testing.T, at string, schema map[string]any, goType reflect.Type) {
	t.Helper()
	for goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	if reflect.PointerTo(goType).Implements(reflect.TypeFor[json.Unmarshaler]()) && goType.Kind() != reflect.Struct {
		return // it is read in a way of its own
	}
	if goType.Kind() == reflect.Slice && goType.Elem().Kind() != reflect.Uint8 {
		items, ok := schema["items"].(map[string]any)
		if !ok {
			t.Errorf("%s: the struct has a list, and the schema says %v", at, schema["type"])
			return
		}
		sameFields(t, at+"[]", items, goType.Elem())
		return
	}
	properties, described := schema["properties"].(map[string]any)
	if goType.Kind() != reflect.Struct || goType == reflect.TypeFor[value.Time]() ||
		goType == reflect.TypeFor[time.Time]() {
		if described {
			t.Errorf("%s: the schema names fields, and the struct has a %s", at, goType)
		}
		return
	}
	if !described {
		t.Errorf("%s: the struct has a %s, and the schema names no fields", at, goType)
		return
	}
	fields := map[string]reflect.Type{}
	for _, field := range reflect.VisibleFields(goType) {
		if !field.Anonymous {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" {
				fields[name] = field.Type
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(properties)), slices.Sorted(maps.Keys(fields))); diff != "" {
		t.Errorf("%s (-schema +struct):\n%s", at, diff)
	}
	for name, fieldType := range fields {
		if p, ok := properties[name].(map[string]any); ok {
			sameFields(t, at+"."+name, p, fieldType)
		}
	}
}
