package backends

import (
	_ "embed"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/internal/schema"
	"golang.org/x/net/http/httpguts"
)

// maxFile is how many bytes a file may have.
const maxFile = 1 << 20

//go:embed domains.schema.json
var formText []byte

// FileSchema returns the JSON Schema of a domains file, for editors.
func FileSchema() []byte { return slices.Clone(formText) }

var form = sync.OnceValue(func() *schema.Form { return schema.NewForm("the file", formText) })

// Parse reads a file and checks all of it. Its error is an [*defects.InvalidError] with every defect.
func Parse(data []byte) (*Domains, error) {
	if len(data) > maxFile {
		return nil, &defects.InvalidError{Defects: []defects.Defect{{Problem: fmt.Sprintf(
			"the domains have %d bytes and may have at most %d", len(data), maxFile)}}}
	}
	doc, problems := form().Read(data)
	p := &parser{problems: problems}
	for i := range p.problems {
		p.problems[i].Text = p.advice(p.problems[i])
	}
	d := &Domains{Services: map[string]Service{}, Servers: map[string]Server{}}
	all := entries(doc)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p.domain(d, name, all[name])
	}
	if len(p.problems) > 0 {
		return nil, &defects.InvalidError{Defects: schema.Defects(doc, "", p.problems, schema.FieldName)}
	}
	d.doc = doc.(map[string]any)
	delete(d.doc, "$schema")
	d.Version, d.json = schema.As[string](d.doc["version"]), schema.Canonical(d.doc)
	return d, nil
}

// nameForm is that of a domain, as tools in the registry have it.
var nameForm = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// entries returns the objects of the file that are domains, by their names. Others are left out: their shape is
// reported.
func entries(doc any) map[string]map[string]any {
	found := map[string]map[string]any{}
	for name, v := range schema.As[map[string]any](doc) {
		if entry, ok := v.(map[string]any); ok && name != "version" && nameForm.MatchString(name) {
			found[name] = entry
		}
	}
	return found
}

// parser makes the domains of one file, and checks what its shape does not tell.
type parser struct{ problems []schema.Problem }

func (p *parser) add(pointer, format string, args ...any) {
	p.problems = append(p.problems, schema.Problem{Pointer: pointer, Text: fmt.Sprintf(format, args...)})
}

// advice is what to do about a problem of the shape. Where somebody may have written a secret, the value is not shown.
func (p *parser) advice(found schema.Problem) string {
	steps := schema.Tokens(found.Pointer)
	switch {
	case len(steps) == 1 && strings.HasPrefix(found.Text, "its name "):
		return "is not the name of a domain, the part of its tools' names before the first dot: a lower-case letter, and " +
			"then lower-case letters, digits and underscores"
	case strings.HasPrefix(found.Text, "unknown field"):
	case len(steps) > 2 && (steps[2] == "secret_env" || steps[2] == "url_env"),
		len(steps) > 3 && (steps[2] == "header_env" || steps[2] == "env"):
		return "must be the name of a variable in capital letters, digits and underscores, such as CRM_SECRET, and never " +
			"its value"
	}
	return found.Text
}

func (p *parser) domain(d *Domains, name string, entry map[string]any) {
	at := schema.JoinPointer("", name)
	service, http := entry["http"].(map[string]any)
	server, mcp := entry["mcp"].(map[string]any)
	_, hasHTTP := entry["http"]
	_, hasMCP := entry["mcp"]
	switch {
	case hasHTTP && hasMCP:
		p.add(at, "has http and mcp, and its tools can have only one backend: remove one")
	case !hasHTTP && !hasMCP:
		p.add(at, `names no backend: give it {"http": {"url": ..., "secret_env": ...}} or {"mcp": {...}}`)
	}
	if http {
		d.Services[name] = p.service(at+"/http", service)
	}
	if mcp {
		d.Servers[name] = p.server(at+"/mcp", server)
	}
}

func (p *parser) service(at string, entry map[string]any) Service {
	_, hasURL := entry["url"]
	_, hasSecret := entry["secret_env"]
	_, hasVariable := entry["url_env"]
	_, hasBody := entry["body"]
	switch {
	case hasVariable && (hasURL || hasSecret):
		p.add(at, "has url_env, whose requests are not signed, and url or secret_env: remove the one or the others")
	case hasVariable && !hasBody:
		p.add(at+"/url_env", `needs "body": "input" next to it, since its requests are the input and not signed`)
	case hasBody && !hasVariable:
		p.add(at+"/body", "belongs to url_env, which names the variable with the URL: remove it, or use url_env")
	}
	if !hasVariable && !hasURL {
		p.add(at+"/url", "is missing: where its tools are, such as https://example.com/crm")
	}
	if !hasVariable && !hasSecret {
		p.add(at+"/secret_env", "is missing: the name of the variable with the secret that signs its requests")
	}
	return Service{
		URL:       strings.TrimRight(p.url(at, entry), "/"),
		SecretEnv: schema.As[string](entry["secret_env"]),
		URLEnv:    schema.As[string](entry["url_env"]),
		Durable:   p.durable(at, entry),
		SQL:       schema.As[bool](entry["sql"]),
		HeaderEnv: p.headers(at, entry, "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature", "Idempotency-Key",
			"Traceparent"),
	}
}

// durable reads the methods of a service that are durable. Their requests have the journal, which others must not read.
func (p *parser) durable(at string, entry map[string]any) []string {
	methods := schema.Texts(entry["durable"])
	if _, hasVariable := entry["url_env"]; hasVariable && len(methods) > 0 {
		p.add(at+"/durable", "belongs to a service with url: one with url_env answers nothing that is read")
	}
	if _, hasSQL := entry["sql"]; hasSQL && len(methods) == 0 {
		p.add(at+"/sql", "belongs to a service with durable methods: remove it, or list them in durable")
	}
	u, err := url.Parse(schema.As[string](entry["url"]))
	if err == nil && len(methods) > 0 && u.Scheme == "http" && !isPrivate(u.Hostname()) {
		p.add(at+"/durable", "needs https: the requests have the results of other tools")
	}
	return methods
}

// isPrivate reports whether a host is this machine, an address in a private network, or a name without a dot, as Docker
// gives them.
func isPrivate(host string) bool {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return !strings.Contains(host, ".")
	}
	return ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast()
}

func (p *parser) server(at string, entry map[string]any) Server {
	s := Server{
		URL:       p.url(at, entry),
		HeaderEnv: p.headers(at, entry),
		Command:   schema.As[string](entry["command"]),
		Args:      schema.Texts(entry["args"]),
		Env:       schema.Texts(entry["env"]),
	}
	_, hasURL := entry["url"]
	_, hasCommand := entry["command"]
	switch {
	case hasURL && hasCommand:
		p.add(at, "has url and command: a server is reached at one or started as the other")
	case !hasURL && !hasCommand:
		p.add(at, "has neither url nor command: a server is reached at one or started as the other")
	}
	for field, with := range map[string]string{"header_env": "url", "args": "command", "env": "command"} {
		if _, has := entry[field]; has && entry[with] == nil {
			p.add(schema.JoinPointer(at, field), "belongs to a server with %s: remove it, or give the server its %[1]s", with)
		}
	}
	return s
}

// url reads the address of a service. It may hold a password, and is not shown where it is wrong.
func (p *parser) url(at string, entry map[string]any) string {
	text, ok := entry["url"].(string)
	if !ok || text == "" {
		return ""
	}
	u, err := url.Parse(text)
	at += "/url"
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "" || strings.ContainsAny(text, " \\"):
		p.add(at, "is not a URL with a scheme and a host: write one such as https://example.com/crm")
	case u.User != nil:
		p.add(at, "has a user: remove it, and name the variable of a header in header_env")
	case strings.ContainsAny(text, "?#"):
		p.add(at, "has a query or a fragment: remove it, and put a secret into a variable that header_env names")
	case u.Scheme != "https" && u.Scheme != "http":
		p.add(at, "has the scheme %s: write https", schema.Show(u.Scheme))
	}
	return text
}

// connection are the headers that belong to a connection and not to a request, or that GEM writes.
var connection = []string{"Host", "Content-Length", "Content-Type", "Transfer-Encoding", "Connection", "Keep-Alive",
	"Proxy-Connection", "Te", "Trailer", "Upgrade",
	"Expect", "Accept-Encoding"}

// headers reads header_env. own are headers that GEM writes itself.
func (p *parser) headers(at string, entry map[string]any, own ...string) map[string]string {
	all := map[string]string{}
	given := schema.As[map[string]any](entry["header_env"])
	for _, name := range slices.Sorted(maps.Keys(given)) {
		at := schema.JoinPointer(at+"/header_env", name)
		same := func(other string) bool { return strings.EqualFold(name, other) }
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			p.add(at, "is not the name of a header")
		case slices.ContainsFunc(connection, same) || slices.ContainsFunc(own, same):
			p.add(at, "is a header that GEM writes itself: remove it")
		case slices.ContainsFunc(slices.Collect(maps.Keys(all)), same):
			p.add(at, "stands here twice, since the case of letters means nothing in the names of headers: remove one")
		}
		all[name] = schema.As[string](given[name])
	}
	return all
}
