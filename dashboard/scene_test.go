package dashboard_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/dashboard"
	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type object = map[string]any

// hostile is text that an agent, a model or a document may contain. None of it may become markup.
const hostile = `<script>alert(1)</script> "><img src=x onerror=alert(1)> javascript:alert(1) ` + "\u202e" +
	`evil 12345678901234567890.123`

// scene is the program with a scripted model, and the pages for an operator and a viewer, each with the rights of its
// role.
type scene struct {
	*handlertest.Env
	model            *llmtest.Server
	operator, viewer *httptest.Server
}

func start(t *testing.T, models llmtest.Options) *scene {
	t.Helper()
	s := &scene{model: llmtest.Start(t, models)}
	routes, err := json.Marshal(object{"version": "1",
		"providers": object{"scripted": object{"dialect": llmtest.OpenAI, "base_url": s.model.BaseURL(llmtest.OpenAI),
			"local": true}},
		"targets": object{"model_a": object{"provider": "scripted", "model": "model-a", "context": 100_000,
			"max_output":   10_000,
			"capabilities": []string{"tools", "structured"}, "usd_per_mtok": []object{{"input": "1", "output": "2"}}}},
		"routes": object{"default": object{"targets": []string{"model_a"}}}})
	if err != nil {
		t.Fatal(err)
	}
	s.Env = handlertest.Start(t, handlertest.Options{Registry: gem.BuiltInRegistry, Domains: builtin.Domains(),
		Environment: map[string]string{"LLM_ROUTES": string(routes)}})
	s.operator, s.viewer = serve(t, s.URL, true), serve(t, s.URL, false)
	return s
}

// serve serves the pages of a database to one user, over connections with the rights of gem_monitor and gem_operator.
func serve(t *testing.T, url string, operator bool) *httptest.Server {
	t.Helper()
	o := dashboard.Options{Read: as(t, url, "gem_monitor"), Act: as(t, url, "gem_operator"),
		User: func(*http.Request) (dashboard.User, error) {
			return dashboard.User{Name: "ada", Operator: operator}, nil
		}}
	through := behind(t, &o, url)
	h, err := dashboard.New(o)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(through(h))
	t.Cleanup(server.Close)
	return server
}

// as returns a pool with the rights of a role.
func as(t *testing.T, url, role string) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = 2
	c.ConnConfig.RuntimeParams["role"] = role
	c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// shows reads a page and checks its status, and the texts that it contains and lacks.
func shows(t *testing.T, server *httptest.Server, path string, status int, has []string, lacks ...string) string {
	t.Helper()
	got, body := get(t, server, path)
	if got != status {
		t.Fatalf("%s: got %d, want %d: %s", path, got, status, body)
	}
	for _, want := range has {
		if !strings.Contains(body, want) {
			t.Errorf("%s lacks %q:\n%s", path, want, body)
		}
	}
	for _, no := range append(lacks, "<script>alert", "<img src=x", "\u202e") {
		if strings.Contains(body, no) {
			t.Errorf("%s has %q:\n%s", path, no, body)
		}
	}
	if len(body) > 200_000 {
		t.Errorf("%s has %d bytes", path, len(body))
	}
	return body
}

// execute runs SQL as the owner.
func (s *scene) execute(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.DB.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
