// Package postgrest runs PostgREST, which is the REST server of Supabase, for gem dev and the tests.
package postgrest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// startLimit is how long PostgREST may take until it answers. A quarter of a second is usual.
const startLimit = time.Minute

// keeper runs a program and ends it when its own standard input closes, which also happens when this process is
// killed. Then it removes the program's folder, its first argument.
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

// Options of a server. All are required.
type Options struct {
	Program     string // its path, as [Find] returns it
	DatabaseURL string // of a login that may become anon, authenticated and service_role
	JWTSecret   string // of the tokens that name the role, at least 32 bytes
	Connections int
}

// Server is a running PostgREST. It listens on a socket that only this process knows; Handler leads there.
type Server struct {
	Handler http.Handler
	Dial    func(context.Context) (net.Conn, error) // connects to the server itself
	Stop    func()                                  // ends the server and waits for it; it may be called again
}

// Start starts PostgREST and returns once it has read the schema of the database. The server runs until Stop, or until
// this process ends.
func Start(ctx context.Context, o Options) (*Server, error) {
	dir, err := os.MkdirTemp("", "gem") // the path of a socket must be short
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "socket")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", keeper, "gem-postgrest", dir, o.Program)
	cmd.SysProcAttr = ownSession() // the terminal's Ctrl-C does not reach it
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"PGRST_DB_URI=" + o.DatabaseURL,
		"PGRST_DB_SCHEMAS=public",
		"PGRST_DB_EXTRA_SEARCH_PATH=public,extensions",
		"PGRST_DB_ANON_ROLE=anon",
		"PGRST_DB_MAX_ROWS=1000",
		"PGRST_DB_POOL=" + strconv.Itoa(o.Connections),
		"PGRST_JWT_SECRET=" + o.JWTSecret,
		"PGRST_SERVER_UNIX_SOCKET=" + socket,
	}
	cmd.Stdout, cmd.Stderr = log, log
	alive, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgREST: %w", err), os.RemoveAll(dir))
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	dial := func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) }
	through := &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConnsPerHost: 50,
		DisableCompression:  true,
	}
	s := &Server{
		Dial: dial,
		Stop: sync.OnceFunc(func() { _ = alive.Close(); <-ended; through.CloseIdleConnections(); _ = os.RemoveAll(dir) }),
		Handler: &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "postgrest"}) },
			// A client that hangs up is not an error; the response shows any other error.
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
				w.WriteHeader(http.StatusBadGateway)
				_ = json.NewEncoder(w).Encode(map[string]string{"message": err.Error()})
			},
			Transport: through,
		},
	}
	if err := waitReady(ctx, through, ended); err != nil {
		text, _ := io.ReadAll(io.NewSectionReader(log, 0, 1<<20)) // its file may be gone
		s.Stop()
		return nil, fmt.Errorf("PostgREST does not answer: %w; its log: %s", err, text)
	}
	return s, nil
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
