//go:build !windows

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// startLimit is how long one server may take until it answers. Half a second is usual; recovery after a crash takes more.
const startLimit = time.Minute

// Start starts a server and returns when it answers. When ctx ends before that, or anything fails, Start leaves nothing
// behind, and the error says what to do or carries the end of the server's log. Once Start has returned, ctx no longer
// matters: the server runs until Stop, or until this process ends.
func Start(ctx context.Context, o Options) (*Server, error) {
	s, err := start(ctx, o, freePort)
	if err != nil {
		return nil, fmt.Errorf("start a private Postgres server: %w", err)
	}
	return s, nil
}

func start(ctx context.Context, o Options, choosePort func() (int, error)) (*Server, error) {
	if o.Log == nil {
		o.Log = func(string) {}
	}
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	bin, err := newSearch(o, as).find(ctx)
	if err != nil {
		return nil, err
	}
	// The port is free when it is chosen, and may be taken when the server gets there.
	const tries = 5
	for try := 1; ; try++ {
		s, err := startOn(ctx, choosePort, o, bin, as)
		if try < tries && errors.Is(err, errPortTaken) {
			continue
		}
		return s, err
	}
}

// startOn starts a server on the port that choosePort returns. The error is errPortTaken when another one was faster.
func startOn(ctx context.Context, choosePort func() (int, error), o Options, bin binaries, as *account) (*Server, error) {
	port, err := choosePort()
	if err != nil {
		return nil, err
	}
	f, err := openFolder(ctx, o, as)
	if err != nil {
		return nil, err
	}
	password, err := f.password()
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	if err := f.fits(bin); err != nil {
		return nil, errors.Join(err, f.close())
	}
	k, err := startKeeper(f, bin, as, password, settings(o, port))
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	s := &Server{
		address:  net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		password: password,
		halt:     sync.OnceValue(k.stop),
	}
	if err := waitReady(ctx, s, k); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// settings are the server's, sorted by name. What the package relies on comes last, where it can not be overruled.
func settings(o Options, port int) []string {
	set := map[string]string{
		"max_connections":            "300",
		"timezone":                   "UTC",
		"log_timezone":               "UTC",
		"dynamic_shared_memory_type": "mmap", // in the data folder, since a container's /dev/shm is too small for it
	}
	if !o.Durable {
		set["fsync"] = "off"
		set["synchronous_commit"] = "off"
		set["full_page_writes"] = "off"
	}
	if o.DataDir == "" {
		set["max_wal_size"] = "256MB" // the folder may lie in memory
	}
	maps.Copy(set, o.Settings)
	set["port"] = strconv.Itoa(port)
	set["listen_addresses"] = "127.0.0.1"
	set["unix_socket_directories"] = ""
	set["logging_collector"] = "off" // the log is how a failed start is explained

	var args []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		args = append(args, "-c", name+"="+set[name])
	}
	return args
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0") //nolint:noctx // returns at once
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

var errPortTaken = errors.New("the port was taken by another program")

// waitReady returns nil as soon as the server lets a client in.
func waitReady(ctx context.Context, s *Server, k *keeper) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("it did not answer within %v", startLimit))
	defer cancel()
	// Once the server has ended, whoever answers at its port is somebody else.
	connecting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.ended, cancel)()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		if conn, err := pgx.Connect(connecting, s.URL("postgres")); err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-k.ended.Done():
			last := k.lastWords()
			if strings.Contains(last, "could not create any TCP/IP sockets") {
				return errPortTaken
			}
			return fmt.Errorf("it ended at once (%w): %s", k.status, last)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w: %s", context.Cause(ctx), k.lastWords())
		case <-poll.C:
		}
	}
}
