package routes

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/schema"
)

// File is the name of a routes file in the working directory.
const File = "llm.routes.json"

// maxFile is the maximum size of a file, in bytes.
const maxFile = 1 << 20

// Find reads the routes from chosen (LLM_ROUTES: a path, or the JSON itself), or otherwise from the working directory.
// from names the source. If there is none, Find returns no routes and no error.
func Find(chosen string) (r *Routes, from string, err error) {
	if chosen = strings.TrimSpace(chosen); chosen == "" {
		if _, err := os.Stat(File); errors.Is(err, fs.ErrNotExist) {
			return nil, "none", nil
		}
		chosen = File
	}
	if !strings.HasPrefix(chosen, "{") {
		r, err = ReadFile(chosen)
		return r, chosen, err
	}
	from = "the JSON of LLM_ROUTES"
	if r, err = Parse([]byte(chosen)); err != nil {
		err = fmt.Errorf("the routes (%s) are refused:\n%w", from, err)
	}
	return r, from, err
}

// ReadFile reads and parses a routes file. Its errors name the file and the solution.
func ReadFile(path string) (*Routes, error) {
	return plainfile.Parsed(path, "routes", "LLM_ROUTES", Parse)
}

// Parse reads a routes file and checks all of it. Its error is an [*defects.InvalidError] with every defect.
func Parse(data []byte) (*Routes, error) {
	if len(data) > maxFile {
		return nil, &defects.InvalidError{Defects: []defects.Defect{{Problem: fmt.Sprintf(
			"the routes have %d bytes and may have at most %d", len(data), maxFile)}}}
	}
	doc, problems := form().Read(data)
	for i := range problems {
		if strings.HasSuffix(problems[i].Pointer, "/key_env") { // somebody may have written the key there
			problems[i].Text = "must be the name of a variable in capital letters that ends with _API_KEY, such as " +
				"OPENAI_API_KEY, and never a key"
		}
	}
	p := &parser{problems: problems, doc: doc, providers: map[string]*Provider{}, targets: map[string]*Target{}}
	r := p.parse()
	if len(p.problems) > 0 {
		return nil, &defects.InvalidError{Defects: schema.Defects(doc, "", p.problems, schema.FieldName)}
	}
	r.doc = doc.(map[string]any)
	delete(r.doc, "$schema")
	r.Version, r.json = schema.As[string](r.doc["version"]), schema.Canonical(r.doc)
	r.notes = notes(r)
	return r, nil
}

//go:embed llm.routes.schema.json
var formText []byte

// FileSchema returns the JSON Schema of a routes file, for editors.
func FileSchema() []byte { return slices.Clone(formText) }

var form = sync.OnceValue(func() *schema.Form { return schema.NewForm("the file", formText) })

// SHA256 returns the hash of [Routes.JSON] in hexadecimal digits. Formatting the file does not change it; any other
// change does.
func (r *Routes) SHA256() string { return fmt.Sprintf("%x", sha256.Sum256(r.json)) }

// JSON returns the file in canonical form: keys sorted, no white space, numbers written in one way, and without the
// $schema at the top. It parses to the same routes.
func (r *Routes) JSON() []byte { return slices.Clone(r.json) }

// Compare returns a line for each provider, target, route and budget that was added, removed or changed, sorted by
// name, such as "target sonnet was changed (context)", and for each other field at the top. Formatting and the order of
// budgets do not count.
func Compare(old, new *Routes) []string {
	return append(schema.Compare(old.file(), new.file()), schema.CompareTop(old.file(), new.file())...)
}

// CheckUpgrade returns an error if new has the version of old and other contents: receipts and the ledger name the
// version, which must identify one file.
func CheckUpgrade(old, new *Routes) error { return schema.CheckUpgrade(old.file(), new.file()) }

func (r *Routes) file() schema.File {
	f := schema.File{Noun: "the routes", List: "budgets", Others: []string{"providers", "targets", "routes"},
		Version: r.Version, Doc: r.doc, Entries: map[string]map[string]any{}}
	for field, noun := range map[string]string{"providers": "provider ", "targets": "target ", "routes": "route "} {
		for name, entry := range entries(r.doc, field) {
			f.Entries[noun+name] = entry
		}
	}
	for _, v := range schema.As[[]any](r.doc["budgets"]) {
		entry := schema.As[map[string]any](v)
		f.Entries["budget "+schema.As[string](entry["name"])] = entry
	}
	return f
}

// entries returns the objects that a field of the file has, by their names. It skips other values, whose shape is
// reported elsewhere.
func entries(doc any, field string) map[string]map[string]any {
	found := map[string]map[string]any{}
	for name, v := range schema.As[map[string]any](schema.ValueAt(doc, "/"+field)) {
		if entry, ok := v.(map[string]any); ok {
			found[name] = entry
		}
	}
	return found
}

// parser makes the routes of one file, and checks everything that the schema cannot.
type parser struct {
	doc       any
	problems  []schema.Problem
	providers map[string]*Provider
	targets   map[string]*Target
}

func (p *parser) add(pointer, format string, args ...any) {
	p.problems = append(p.problems, schema.Problem{Pointer: pointer, Text: fmt.Sprintf(format, args...)})
}

func (p *parser) parse() *Routes {
	r := &Routes{}
	p.each("providers", func(at, name string, entry map[string]any) {
		p.providers[name] = p.provider(at, name, entry)
		r.providers = append(r.providers, p.providers[name])
	})
	p.each("targets", func(at, name string, entry map[string]any) {
		p.targets[name] = p.target(at, name, entry)
		r.targets = append(r.targets, p.targets[name])
	})
	p.each("routes", func(at, name string, entry map[string]any) { r.routes = append(r.routes, p.route(at, name, entry)) })
	r.budgets = p.budgets()
	if len(r.budgets) > 0 {
		for _, route := range r.routes {
			for i, target := range route.Targets {
				if target != nil && len(target.Prices) == 0 {
					p.add(schema.JoinPointer("/routes", route.Name)+"/targets/"+strconv.Itoa(i),
						"is %s, which has no price, and there are budgets: %s", target.Name, givePrice)
				}
			}
		}
	}
	return r
}

// givePrice is the solution for a target without a price.
const givePrice = `give the target its usd_per_mtok, as in [{"input": "3", "output": "15"}], with "0" if it costs ` +
	`nothing`

// each calls read with every entry that a field has, sorted by name.
func (p *parser) each(field string, read func(at, name string, entry map[string]any)) {
	all := entries(p.doc, field)
	for _, n := range slices.Sorted(maps.Keys(all)) {
		read(schema.JoinPointer("/"+field, n), n, all[n])
	}
}

func (p *parser) provider(at, name string, entry map[string]any) *Provider {
	v := &Provider{
		Name:    name,
		Dialect: Dialect(schema.As[string](entry["dialect"])),
		KeyEnv:  schema.As[string](entry["key_env"]),
		Local:   schema.As[bool](entry["local"]),
		Label:   schema.As[string](entry["name"]),
	}
	base, ok := entry["base_url"].(string)
	if !ok || base == "" {
		return v
	}
	u, err := url.Parse(base)
	at += "/base_url"
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "" || strings.ContainsAny(base, " \\"):
		// it may hold a password, and is not shown
		p.add(at, "is not a URL with a scheme and a host: write one such as https://api.openai.com/v1")
	case u.User != nil:
		p.add(at, "has a user: remove it, and name the variable of a key in key_env")
	case strings.ContainsAny(base, "?#"):
		p.add(at, "has a query or a fragment: remove it")
	case u.Scheme == "http" && !v.Local:
		p.add(at, `is http, which sends the key and all texts unencrypted: write https, or "local": true if the provider `+
			`runs on this machine or in this network`)
	case u.Scheme != "https" && u.Scheme != "http":
		p.add(at, "has the scheme %s: write https", schema.Show(u.Scheme))
	default:
		v.BaseURL = strings.TrimRight(base, "/")
		v.Label = cmp.Or(v.Label, known[strings.ToLower(u.Hostname())], name)
	}
	return v
}

// known are the names of the providers at these hosts in traces.
var known = map[string]string{
	"api.anthropic.com":                 "anthropic",
	"api.openai.com":                    "openai",
	"api.mistral.ai":                    "mistral_ai",
	"generativelanguage.googleapis.com": "gcp.gemini",
	"api.deepseek.com":                  "deepseek",
	"api.groq.com":                      "groq",
	"api.x.ai":                          "x_ai",
}

// number reads a whole number. It returns 0 for anything else.
func number(entry map[string]any, field string) int {
	n, _ := strconv.Atoi(string(schema.As[json.Number](entry[field])))
	return n
}

func (p *parser) target(at, name string, entry map[string]any) *Target {
	can := schema.Texts(entry["capabilities"])
	a := &Target{
		Name:          name,
		Model:         schema.As[string](entry["model"]),
		Context:       number(entry, "context"),
		MaxOutput:     number(entry, "max_output"),
		Tools:         slices.Contains(can, "tools"),
		Thinking:      slices.Contains(can, "thinking"),
		Structured:    slices.Contains(can, "structured"),
		MaxConcurrent: number(entry, "max_concurrent"),
		FirstContent:  time.Duration(cmp.Or(number(entry, "first_content_s"), 60)) * time.Second,
		Idle:          time.Duration(cmp.Or(number(entry, "idle_s"), 60)) * time.Second,
		Cache:         schema.As[string](entry["cache"]) != "off",
		Prices:        p.prices(at+"/usd_per_mtok", entry["usd_per_mtok"]),
	}
	if of, ok := entry["provider"].(string); ok && of != "" {
		a.Provider = p.providers[of]
		if a.Provider == nil {
			p.add(at+"/provider", "there is no provider %s%s", schema.Show(of),
				cmp.Or(schema.DidYouMean(of, slices.Sorted(maps.Keys(p.providers))), ": add it to providers, or name another"))
		}
	}
	if a.Cache && a.Provider != nil && a.Provider.Dialect == Anthropic {
		for i, price := range a.Prices {
			if price.CacheWrite == nil {
				p.add(at+"/usd_per_mtok/"+strconv.Itoa(i), `lacks cache_write, the price of input that the provider keeps for `+
					`the next request: add it, or set "cache": "off"`)
			}
		}
	}
	if a.Context > 0 && a.MaxOutput > a.Context {
		p.add(at+"/max_output", "is %d, and context is %d, in which the output must fit: correct one of them", a.MaxOutput,
			a.Context)
	}
	return a
}

// dearest is the highest plausible price.
const dearest = 10_000 * provider.USD

func (p *parser) prices(at string, v any) (all []provider.Price) {
	for i, tier := range schema.As[[]any](v) {
		entry, ok := tier.(map[string]any)
		if !ok {
			continue
		}
		at := at + "/" + strconv.Itoa(i)
		price := provider.Price{
			AboveInput: int64(number(entry, "above_input")),
			Input:      p.price(at, entry, "input"),
			Output:     p.price(at, entry, "output"),
		}
		for field, to := range map[string]**provider.Money{"cache_read": &price.CacheRead, "cache_write": &price.CacheWrite} {
			if _, has := entry[field]; has {
				m := p.price(at, entry, field)
				*to = &m
			}
		}
		_, above := entry["above_input"]
		switch {
		case i == 0 && above:
			p.add(at+"/above_input", "stands in the first price, which is for all inputs: remove it")
		case i > 0 && !above:
			p.add(at+"/above_input", "is missing: say above how many tokens of input the price is valid, as in 200000")
		case i > 0 && len(all) > 0 && price.AboveInput > 0 && price.AboveInput <= all[len(all)-1].AboveInput:
			p.add(at+"/above_input", "is %d, and that of the price before is %d: order the prices by it", price.AboveInput,
				all[len(all)-1].AboveInput)
		}
		all = append(all, price)
	}
	return all
}

func (p *parser) price(at string, entry map[string]any, field string) provider.Money {
	m := money(entry, field)
	if m > dearest {
		p.add(at+"/"+field, "is %s USD for a million tokens, and %s is the most that is believed: correct it", m, dearest)
	}
	return m
}

// money reads an amount. It returns 0 for anything else.
func money(entry map[string]any, field string) provider.Money {
	m, err := provider.ParseMoney(schema.As[string](entry[field]))
	if err != nil {
		return 0
	}
	return m
}

func (p *parser) route(at, name string, entry map[string]any) *Route {
	r := &Route{Name: name, Order: Order(cmp.Or(schema.As[string](entry["order"]), string(Listed)))}
	if _, has := entry["max_cost_usd"]; has {
		most := money(entry, "max_cost_usd")
		r.MaxCost = &most
	}
	names := schema.Texts(entry["targets"])
	weights, weighs := entry["weights"].(map[string]any)
	for i, n := range names {
		target := p.targets[n]
		at := at + "/targets/" + strconv.Itoa(i)
		switch {
		case target == nil:
			p.add(at, "there is no target %s%s", schema.Show(n),
				cmp.Or(schema.DidYouMean(n, slices.Sorted(maps.Keys(p.targets))), ": add it to targets, or name another"))
		case r.MaxCost != nil && len(target.Prices) == 0:
			p.add(at, "is %s, which has no price, and the route has a max_cost_usd: %s", n, givePrice)
		}
		r.Targets = append(r.Targets, target)
		if r.Order == Weighted {
			r.Weights = append(r.Weights, max(1, number(weights, n)))
		}
	}
	if weighs && r.Order != Weighted {
		p.add(at+"/weights", "does nothing with the order %s: remove it, or write the order weighted",
			schema.Show(string(r.Order)))
	}
	for _, n := range slices.Sorted(maps.Keys(weights)) {
		if !slices.Contains(names, n) {
			p.add(schema.JoinPointer(at+"/weights", n), "is not a target of the route%s",
				cmp.Or(schema.DidYouMean(n, names), ": remove it, or add the target"))
		}
	}
	return r
}

func (p *parser) budgets() (all []Budget) {
	first := map[string]int{}
	for i, v := range schema.As[[]any](schema.ValueAt(p.doc, "/budgets")) {
		entry, ok := v.(map[string]any)
		if !ok {
			continue
		}
		b := Budget{
			Name:   schema.As[string](entry["name"]),
			Scope:  Scope(schema.As[string](entry["scope"])),
			Period: Period(schema.As[string](entry["period"])),
			USD:    money(entry, "usd"),
		}
		if before, twice := first[b.Name]; !twice {
			first[b.Name] = i
		} else if b.Name != "" {
			p.add("/budgets/"+strconv.Itoa(i)+"/name", "budgets[%d] and budgets[%d] have the same name: rename or remove one",
				before, i)
		}
		all = append(all, b)
	}
	return all
}

// misplacedPath describes what is unusual about the path of a base_url, to which the dialect's own is added.
func misplacedPath(d Dialect, path string) string {
	path = strings.TrimRight(path, "/")
	for _, own := range []string{"/chat/completions", "/messages"} {
		if strings.HasSuffix(path, own) {
			return "ends with " + own + ", which requests add: leave it out"
		}
	}
	if d == OpenAI && path == "" {
		return "has no path: requests go to /chat/completions, while most providers want a base_url that ends with /v1"
	}
	return ""
}

// notes lists what is allowed but may surprise.
func notes(r *Routes) (all []string) {
	note := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	hosts := map[string][]string{} // by the variable of the key
	for _, p := range r.providers {
		if !slices.ContainsFunc(r.targets, func(a *Target) bool { return a.Provider == p }) {
			note("no target is of the provider %s", p.Name)
		}
		u, _ := url.Parse(p.BaseURL) // which was parsed before
		switch {
		case p.KeyEnv == "" && !p.Local:
			note("the provider %s has no key_env, so that its requests carry no key", p.Name)
		case p.KeyEnv == "":
		case !slices.Contains(hosts[p.KeyEnv], u.Host):
			hosts[p.KeyEnv] = append(hosts[p.KeyEnv], u.Host)
		}
		if misplaced := misplacedPath(p.Dialect, u.Path); misplaced != "" {
			note("the base_url of the provider %s %s", p.Name, misplaced)
		}
		if p.KeyEnv != "" && u.Scheme == "http" && !loopback(u.Hostname()) {
			note("the key of the provider %s goes unencrypted to %s", p.Name, u.Host)
		}
	}
	for _, variable := range slices.Sorted(maps.Keys(hosts)) {
		if len(hosts[variable]) > 1 {
			note("the key in %s is sent to several hosts: %s", variable, strings.Join(hosts[variable], ", "))
		}
	}
	for _, a := range r.targets {
		if !slices.ContainsFunc(r.routes, func(route *Route) bool { return slices.Contains(route.Targets, a) }) {
			note("the target %s is in no route", a.Name)
		}
	}
	for _, route := range r.routes {
		for i, a := range route.Targets {
			if twin := slices.IndexFunc(route.Targets[:i], func(b *Target) bool {
				return a.Provider == b.Provider && a.Model == b.Model
			}); twin >= 0 {
				note("the targets %s and %s of the route %s are the same model of the same provider", route.Targets[twin].Name,
					a.Name,
					route.Name)
			}
		}
	}
	if _, has := r.Route("default"); !has {
		note("no route is named default, so that every call has to name one")
	}
	for i, b := range r.budgets {
		if twin := slices.IndexFunc(r.budgets[:i], func(c Budget) bool {
			return b.Scope == c.Scope && b.Period == c.Period
		}); twin >= 0 {
			note("the budgets %s and %s count the same requests in the same period: only the lower has an effect",
				r.budgets[twin].Name, b.Name)
		}
	}
	return all
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
