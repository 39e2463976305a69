package routes_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/routes"
	"github.com/google/go-cmp/cmp"
)

// whole has every field of a routes file.
const whole = `{
	"$schema": "./llm.routes.schema.json", "version": "3", "x-note": "ours",
	"providers": {
		"anthropic": {"dialect": "anthropic", "base_url": "https://api.anthropic.com/", "key_env": "ANTHROPIC_API_KEY"},
		"mistral": {"dialect": "openai", "base_url": "https://api.mistral.ai/v1", "key_env": "MISTRAL_API_KEY"},
		"near": {"dialect": "openai", "base_url": "http://127.0.0.1:11434/v1", "local": true, "name": "ollama", "x-note": "in the cellar"}},
	"targets": {
		"big": {"provider": "anthropic", "model": "claude-x", "context": 200000, "max_output": 64000, "capabilities": ["tools", "thinking"], "max_concurrent": 16,
			"first_content_s": 90, "idle_s": 30, "usd_per_mtok": [{"input": "3", "output": "15", "cache_read": "0.30", "cache_write": "3.75"}, {"above_input": 100000, "input": "6", "output": "22.5", "cache_write": "7.5"}]},
		"fast": {"provider": "mistral", "model": "mistral-x", "context": 32000, "max_output": 8000, "capabilities": ["structured"], "usd_per_mtok": [{"input": "0.1", "output": "0.3"}]},
		"small": {"provider": "near", "model": "qwen:7b", "context": 8000, "max_output": 8000, "cache": "off", "usd_per_mtok": [{"input": "0", "output": "0"}]}},
	"routes": {
		"default": {"targets": ["big", "small"], "max_cost_usd": "0.50"},
		"drawn": {"targets": ["small", "big", "fast"], "order": "weighted", "weights": {"big": 3}}},
	"budgets": [{"name": "all_day", "scope": "all", "period": "day", "usd": "20"}, {"name": "user_hour", "scope": "user", "period": "hour", "usd": "0.5"}]}`

func parse(t *testing.T, text string) *routes.Routes {
	t.Helper()
	r, err := routes.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAFileIsRead(t *testing.T) {
	t.Parallel()
	r := parse(t, whole)
	usd := func(text string) provider.Money {
		m, err := provider.ParseMoney(text)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	read, write, writeMore, most := usd("0.30"), usd("3.75"), usd("7.5"), usd("0.5")
	anthropic := &routes.Provider{Name: "anthropic", Dialect: routes.Anthropic, BaseURL: "https://api.anthropic.com",
		KeyEnv: "ANTHROPIC_API_KEY", Label: "anthropic"}
	mistral := &routes.Provider{Name: "mistral", Dialect: routes.OpenAI, BaseURL: "https://api.mistral.ai/v1",
		KeyEnv: "MISTRAL_API_KEY", Label: "mistral_ai"}
	near := &routes.Provider{Name: "near", Dialect: routes.OpenAI, BaseURL: "http://127.0.0.1:11434/v1", Local: true,
		Label: "ollama"}
	big := &routes.Target{
		Name: "big", Provider: anthropic, Model: "claude-x", Context: 200_000, MaxOutput: 64_000, Tools: true, Thinking: true,
		MaxConcurrent: 16,
		FirstContent:  90 * time.Second, Idle: 30 * time.Second, Cache: true,
		Prices: []provider.Price{{Input: usd("3"), Output: usd("15"), CacheRead: &read, CacheWrite: &write},
			{AboveInput: 100_000, Input: usd("6"), Output: usd("22.5"), CacheWrite: &writeMore}},
	}
	fast := &routes.Target{Name: "fast", Provider: mistral, Model: "mistral-x", Context: 32_000, MaxOutput: 8000,
		Structured: true, FirstContent: time.Minute, Idle: time.Minute, Cache: true,
		Prices: []provider.Price{{Input: usd("0.1"), Output: usd("0.3")}}}
	small := &routes.Target{Name: "small", Provider: near, Model: "qwen:7b", Context: 8000, MaxOutput: 8000,
		FirstContent: time.Minute, Idle: time.Minute, Prices: []provider.Price{{}}}
	for what, pair := range map[string][2]any{
		"version":   {r.Version, "3"},
		"providers": {r.Providers(), []*routes.Provider{anthropic, mistral, near}},
		"targets":   {r.Targets(), []*routes.Target{big, fast, small}},
		"routes": {r.Routes(), []*routes.Route{
			{Name: "default", Targets: []*routes.Target{big, small}, Order: routes.Listed, MaxCost: &most},
			{Name: "drawn", Targets: []*routes.Target{small, big, fast}, Order: routes.Weighted, Weights: []int{1, 3, 1}},
		}},
		"budgets": {r.Budgets(), []routes.Budget{
			{Name: "all_day", Scope: routes.OfAll, Period: routes.Day, USD: usd("20")},
			{Name: "user_hour", Scope: routes.OfUser, Period: routes.Hour, USD: usd("0.5")},
		}},
		"notes": {r.Notes(), []string(nil)},
	} {
		if diff := cmp.Diff(pair[1], pair[0]); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	if route, ok := r.Route("drawn"); !ok || route.Name != "drawn" {
		t.Error("the route drawn is not found")
	}
	if target, ok := r.Target("fast"); !ok || target.Name != "fast" {
		t.Error("the target fast is not found")
	}
	_, route := r.Route("drwan")
	if _, target := r.Target("fats"); route || target {
		t.Error("what is not there is found")
	}
}

// file is a valid file except for some of its parts.
func file(parts map[string]string) string {
	all := map[string]string{
		"providers": `{"p": {"dialect": "openai", "base_url": "https://example.com/v1", "key_env": "P_API_KEY"}}`,
		"targets":   `{"a": {"provider": "p", "model": "m", "context": 1000, "max_output": 500}}`,
		"routes":    `{"default": {"targets": ["a"]}}`,
		"budgets":   `[]`,
	}
	for field, text := range parts {
		all[field] = text
	}
	return fmt.Sprintf(`{"version": "1", "providers": %s, "targets": %s, "routes": %s, "budgets": %s}`, all["providers"],
		all["targets"], all["routes"], all["budgets"])
}

func TestEachFaultIsNamedWithItsPlace(t *testing.T) {
	t.Parallel()
	provider := func(fields string) map[string]string {
		return map[string]string{"providers": `{"p": {"dialect": "openai", ` + fields + `}}`}
	}
	target := func(fields string) map[string]string {
		return map[string]string{"targets": `{"a": {"provider": "p", "model": "m", "context": 1000, "max_output": 500, ` +
			fields + `}}`}
	}
	priced := `{"a": {"provider": "p", "model": "m", "context": 1000, "max_output": 500, "usd_per_mtok": [{"input": "1", "output": "2"}]}, "b": {"provider": "p", "model": "n", "context": 1000, "max_output": 500}}`
	for name, c := range map[string]struct {
		parts map[string]string
		want  []string // beginnings of the lines
	}{
		"no dialect": {map[string]string{"providers": `{"p": {"base_url": "https://example.com"}}`},
			[]string{"providers.p.dialect: is missing. What the provider speaks."}},
		"another dialect": {map[string]string{"providers": `{"p": {"dialect": "gemni", "base_url": "https://example.com"}}`},
			[]string{"providers.p.dialect: must be one of anthropic, openai, gemini: did you mean gemini?"}},
		"no encryption": {provider(`"base_url": "http://example.com"`),
			[]string{"providers.p.base_url: is http, which sends the key and all texts unencrypted"}},
		"a host alone": {provider(`"base_url": "example.com"`),
			[]string{"providers.p.base_url: is not a URL with a scheme and a host"}},
		"a host with its port": {provider(`"base_url": "localhost:8080", "local": true`),
			[]string{"providers.p.base_url: is not a URL with a scheme and a host"}},
		"another scheme": {provider(`"base_url": "ftp://example.com", "local": true`),
			[]string{"providers.p.base_url: has the scheme ftp: write https"}},
		"a user": {provider(`"base_url": "https://u:hunter2@example.com"`),
			[]string{"providers.p.base_url: has a user: remove it"}},
		"a query": {provider(`"base_url": "https://example.com/?key=hunter2"`),
			[]string{"providers.p.base_url: has a query or a fragment"}},
		"a fragment": {provider(`"base_url": "https://example.com/#hunter2"`),
			[]string{"providers.p.base_url: has a query or a fragment"}},
		"a bad escape": {provider(`"base_url": "https://example.com/%zz"`),
			[]string{"providers.p.base_url: is not a URL"}},
		"a variable of another": {provider(`"base_url": "https://example.com", "key_env": "DATABASE_URL"`),
			[]string{"providers.p.key_env: must be the name of a variable in capital letters that ends with _API_KEY"}},
		"a key": {provider(`"base_url": "https://example.com", "key_env": "sk-hunter2"`),
			[]string{"providers.p.key_env: must be the name of a variable"}},
		"a field for a key": {provider(`"base_url": "https://example.com", "api_key": "sk-hunter2"`),
			[]string{"providers.p.api_key: unknown field"}},
		"a name": {map[string]string{"routes": `{"default": {"targets": ["a"]}, "Big One": {"targets": ["a"]}}`},
			[]string{`routes."Big One": its name does not match the pattern "^[a-z][a-z0-9_]{0,62}$". A name has 1 to 63`}},
		"a name twice": {map[string]string{"routes": `{"default": {"targets": ["a"]}, "default": {"targets": ["a"]}}`},
			[]string{"routes.default: the key appears twice in one object"}},
		"an unknown provider": {map[string]string{"targets": `{"a": {"provider": "q", "model": "m", "context": 1, "max_output": 1}}`}, []string{"targets.a.provider: there is no provider q: add it to providers, or name another"}},
		"an output too large": {map[string]string{"targets": `{"a": {"provider": "p", "model": "m", "context": 1, "max_output": 2}}`}, []string{"targets.a.max_output: is 2, and context is 1, in which the output must fit"}},
		"another capability": {target(`"capabilities": ["tool"]`),
			[]string{"targets.a.capabilities[0]: must be one of tools, thinking, structured: did you mean tools?"}},
		"late content": {target(`"first_content_s": 601`),
			[]string{"targets.a.first_content_s: must be at most 600; it is 601."}},
		"a number as a price": {target(`"usd_per_mtok": [{"input": 3, "output": "1,5"}]`),
			[]string{"targets.a.usd_per_mtok[0].input: must be a string but is a number. USD in decimal digits",
				`targets.a.usd_per_mtok[0].output: does not match the pattern`}},
		"a price for each token": {target(`"usd_per_mtok": [{"input": "1", "output": "15000.5"}]`),
			[]string{"targets.a.usd_per_mtok[0].output: is 15000.5 USD for a million tokens, and 10000 is the most"}},
		"prices without sizes": {target(
			`"usd_per_mtok": [{"above_input": 1, "input": "1", "output": "1"}, {"input": "1", "output": "1"}]`), []string{
			"targets.a.usd_per_mtok[0].above_input: stands in the first price",
			"targets.a.usd_per_mtok[1].above_input: is missing: say above how many tokens",
		}},
		"prices out of order": {target(
			`"usd_per_mtok": [{"input": "1", "output": "1"}, {"above_input": 9, "input": "1", "output": "1"}, {"above_input": 9, "input": "1", "output": "1"}]`), []string{
			"targets.a.usd_per_mtok[2].above_input: is 9, and that of the price before is 9",
		}},
		"no price of what Anthropic keeps": {map[string]string{
			"providers": `{"p": {"dialect": "anthropic", "base_url": "https://example.com"}}`,
			"targets": `{"a": {"provider": "p", "model": "m", "context": 1000, "max_output": 500, "usd_per_mtok": [{"input": "1", "output": "2", "cache_write": "1.25"}, {"above_input": 9, "input": "1", "output": "2"}]},
				"b": {"provider": "p", "model": "m", "context": 1000, "max_output": 500, "cache": "off", "usd_per_mtok": [{"input": "1", "output": "2"}]}}`},
			[]string{"targets.a.usd_per_mtok[1]: lacks cache_write"}},
		"a cache of another kind": {target(`"cache": true`),
			[]string{"targets.a.cache: must be one of on, off"}},
		"a route without targets": {map[string]string{"routes": `{"default": {"targets": []}}`},
			[]string{"routes.default.targets: has too few items"}},
		"an unknown target": {map[string]string{"routes": `{"default": {"targets": ["a", "b"]}}`},
			[]string{"routes.default.targets[1]: there is no target b: add it to targets, or name another"}},
		"a target twice": {map[string]string{"routes": `{"default": {"targets": ["a", "a"]}}`},
			[]string{"routes.default.targets: must not contain the same item twice"}},
		"another order": {map[string]string{"routes": `{"default": {"targets": ["a"], "order": "cheap"}}`},
			[]string{"routes.default.order: must be one of listed, cheapest, fastest, weighted: did you mean cheapest?"}},
		"weights for nothing": {map[string]string{"routes": `{"default": {"targets": ["a"], "weights": {"a": 1}}}`},
			[]string{"routes.default.weights: does nothing with the order listed: remove it, or write the order weighted"}},
		"weights of others":   {map[string]string{"routes": `{"default": {"targets": ["a"], "order": "weighted", "weights": {"b": 1}}}`}, []string{"routes.default.weights.b: is not a target of the route: remove it"}},
		"a weight of nothing": {map[string]string{"routes": `{"default": {"targets": ["a"], "order": "weighted", "weights": {"a": 0}}}`}, []string{"routes.default.weights.a: must be at least 1; it is 0."}},
		"a cap without a price": {map[string]string{"targets": priced,
			"routes": `{"default": {"targets": ["a", "b"], "max_cost_usd": "1"}, "free": {"targets": ["b"]}}`},
			[]string{"routes.default.targets[1]: is b, which has no price, and the route has a max_cost_usd: give the target " +
				"its " +
				"usd_per_mtok"}},
		"a budget without price": {map[string]string{"targets": priced, "routes": `{"default": {"targets": ["a", "b"]}}`,
			"budgets": `[{"name": "x", "scope": "target", "period": "day", "usd": "1"}]`},
			[]string{"routes.default.targets[1]: is " +
				"b, which has no price, and there are budgets: give the target its usd_per_mtok"}},
		"budgets of one name": {map[string]string{"targets": priced, "routes": `{"default": {"targets": ["a"]}}`,
			"budgets": `[{"name": "x", "scope": "all", "period": "day", "usd": "1"}, {"name": "x", "scope": "user", "period": "day", "usd": "1"}]`}, []string{
			"budgets[1].name: budgets[0] and budgets[1] have the same name",
		}},
		"a budget of nothing": {map[string]string{"budgets": `[{"name": "x", "scope": "team", "period": "week", "usd": "-1"}]`}, []string{"budgets[0].period: must be one of hour, day, month", "budgets[0].scope: must be one of all, user", "budgets[0].usd: does not match", "routes.default.targets[0]: is a, which has no price"}},
		"parts of another shape": {map[string]string{"providers": `[]`, "targets": `{"a": 1}`, "routes": `{"default": null}`,
			"budgets": `[3]`}, []string{"budgets[0]: must be an object", "providers: must be an object",
			"routes.default: must be an object", "targets.a: must be an object"}},
	} {
		_, err := routes.Parse([]byte(file(c.parts)))
		var got []string
		if err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
			continue
		}
		for i, line := range got {
			if !strings.HasPrefix(line, c.want[i]) {
				t.Errorf("%s: got %s, want %s", name, line, c.want[i])
			}
			if strings.Contains(line, "hunter2") {
				t.Errorf("%s: a secret is shown: %s", name, line)
			}
		}
	}
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":   "the file is not valid JSON: line 1, column 1",
		"[]": "must be an object but is a list",
		"{}": "targets: is missing. ",
		`{"version": "1"` + strings.Repeat(" ", 1<<20): "the routes have 1048591 bytes and may have at most 1048576",
	} {
		if _, err := routes.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: got %v, want %s", text, err, want)
		}
	}
}

func TestNotesSayWhatMaySurprise(t *testing.T) {
	t.Parallel()
	r := parse(t, `{"version": "1",
		"providers": {"p": {"dialect": "openai", "base_url": "https://a.example/v1", "key_env": "P_API_KEY"}, "q": {"dialect": "openai", "base_url": "http://b.example:8080/v1", "key_env": "P_API_KEY", "local": true},
			"r": {"dialect": "openai", "base_url": "https://c.example"}, "s": {"dialect": "openai", "base_url": "http://[::1]:1/v1/chat/completions", "key_env": "S_API_KEY", "local": true}},
		"targets": {"a": {"provider": "p", "model": "m", "context": 1, "max_output": 1, "usd_per_mtok": [{"input": "1", "output": "1"}]}, "b": {"provider": "q", "model": "m", "context": 1, "max_output": 1},
			"c": {"provider": "p", "model": "m", "context": 1, "max_output": 1, "usd_per_mtok": [{"input": "1", "output": "1"}]}, "d": {"provider": "s", "model": "m", "context": 1, "max_output": 1}},
		"routes": {"main": {"targets": ["a", "c"]}},
		"budgets": [{"name": "one", "scope": "all", "period": "day", "usd": "1"}, {"name": "two", "scope": "all", "period": "day", "usd": "2"}]}`)
	want := []string{
		"the key of the provider q goes unencrypted to b.example:8080",
		"no target is of the provider r",
		"the provider r has no key_env, so that its requests carry no key",
		"the base_url of the provider r has no path: requests go to /chat/completions, while most providers want a " +
			"base_url that ends with /v1",
		"the base_url of the provider s ends with /chat/completions, which requests add: leave it out",
		"the key in P_API_KEY is sent to several hosts: a.example, b.example:8080",
		"the target b is in no route",
		"the target d is in no route",
		"the targets a and c of the route main are the same model of the same provider",
		"no route is named default, so that every call has to name one",
		"the budgets one and two count the same requests in the same period: only the lower has an effect",
	}
	if diff := cmp.Diff(want, r.Notes()); diff != "" {
		t.Error(diff)
	}
}

func TestTheCanonicalFormKnowsNoFormatting(t *testing.T) {
	t.Parallel()
	a := parse(t, whole)
	again := parse(t, string(a.JSON()))
	if again.SHA256() != a.SHA256() || string(again.JSON()) != string(a.JSON()) {
		t.Error("the canonical form parses to other routes")
	}
	var indented []byte
	if v := any(nil); json.Unmarshal([]byte(whole), &v) == nil {
		indented, _ = json.MarshalIndent(v, "", "\t")
	}
	b := parse(t, "\ufeff"+strings.Replace(string(indented), `"context": 8000`, `"context": 8.0e3`, 1))
	if a.SHA256() != b.SHA256() || strings.Contains(string(a.JSON()), "$schema") {
		t.Errorf("got %s and %s", a.JSON(), b.JSON())
	}
	if err := routes.CheckUpgrade(a, b); err != nil {
		t.Error(err)
	}
}

func TestOtherContentsNeedAnotherVersion(t *testing.T) {
	t.Parallel()
	old := parse(t, whole)
	changed := strings.NewReplacer(`"context": 32000`, `"context": 16000`, `["big", "small"]`, `["small", "big"]`,
		`"usd": "20"`, `"usd": "30"`, `"x-note": "ours"`, `"x-note": "yours"`,
		`"small": {"provider": "near", "model"`, `"small": {"x-by": "us", "provider": "near", "model"`,
		`{"name": "user_hour", "scope": "user", "period": "hour", "usd": "0.5"}`,
		`{"name": "target_hour", "scope": "target", "period": "hour", "usd": "0.5"}`).Replace(whole)
	want := []string{
		"budget all_day was changed (usd)", "budget target_hour was added", "budget user_hour was removed",
		"route default was changed (targets)", "target fast was changed (context)", "target small was changed (x-by)",
		"x-note at the top was changed",
	}
	now := parse(t, changed)
	if diff := cmp.Diff(want, routes.Compare(old, now)); diff != "" {
		t.Error(diff)
	}
	err := routes.CheckUpgrade(old, now)
	if err == nil || err.Error() != `version 3 of the routes has other contents than the recorded version 3: `+
		strings.Join(want, "; ")+`; raise "version" in the file, or undo the change` {
		t.Error(err)
	}
	if err := routes.CheckUpgrade(old, parse(t, strings.Replace(changed, `"version": "3"`, `"version": "4"`,
		1))); err != nil {
		t.Error(err)
	}
	if same := routes.Compare(old, old); len(same) > 0 {
		t.Errorf("got %q", same)
	}
}

func TestFindTakesAFileOrItsContents(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "routes.json")
	if err := os.WriteFile(path, []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
	for chosen, want := range map[string]string{" " + path + "\n": path, "\t" + whole: "the JSON of LLM_ROUTES"} {
		if r, from, err := routes.Find(chosen); err != nil || r.Version != "3" || from != want {
			t.Errorf("%.20s: %v, %s, %v", chosen, r, from, err)
		}
	}
	if r, from, err := routes.Find(" "); r != nil || from != "none" || err != nil { // llm.routes.json does not exist here
		t.Errorf("%v, %s, %v", r, from, err)
	}
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte(`{"version": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for chosen, want := range map[string]string{
		"nowhere.json":   "there are no routes at nowhere.json: create the file, or set LLM_ROUTES to its path",
		broken:           "the routes " + broken + " are invalid:\n",
		t.TempDir():      "cannot read the routes: ",
		`{"version": 1}`: "the routes (the JSON of LLM_ROUTES) are refused:\n",
	} {
		if _, _, err := routes.Find(chosen); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", chosen, err, want)
		}
	}
}

// An editor shows the description of each field.
func TestTheEditorsSchemaDescribesEachField(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("llm.routes.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type described struct {
		Description string               `json:"description"`
		Properties  map[string]described `json:"properties"`
	}
	var doc struct {
		Defs map[string]described `json:"$defs"`
		described
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	doc.Defs["the file"] = doc.described
	for name, d := range doc.Defs {
		if d.Description == "" {
			t.Errorf("%s has no description", name)
		}
		for field, p := range d.Properties {
			if p.Description == "" {
				t.Errorf("%s.%s has no description", name, field)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(file(nil)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := routes.Parse(data)
		if err != nil {
			return
		}
		if again, err := routes.Parse(r.JSON()); err != nil || again.SHA256() != r.SHA256() {
			t.Errorf("the canonical form is another: %v", err)
		}
	})
}
