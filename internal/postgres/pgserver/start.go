//go:build !windows

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// startLimit limits the time until a server answers. It usually takes half a second, and longer after a crash.
const startLimit = time.Minute

// Start starts a server and returns when it answers. If ctx ends before that or anything else fails, Start leaves
// nothing behind. Its error contains the solution, or the end of the server's log. After Start has returned, ctx has no
// effect: the server runs until Stop, or until this process ends.
func Start(ctx context.Context, o Options) (*Server, error) {
	choosePort := freePort
	if o.Port != 0 {
		choosePort = func() (int, error) { return o.Port, nil }
	}
	s, err := start(ctx, o, choosePort)
	if err != nil {
		return nil, fmt.Errorf("start a private Postgres server: %w", err)
	}
	return s, nil
}

func start(ctx context.Context, o Options, choosePort func() (int, error)) (s *Server, err error) {
	search, err := newSearch(o)
	if err != nil {
		return nil, err
	}
	bin, err := search.find(ctx)
	if err != nil {
		return nil, err
	}
	// Another program may take the port first.
	for range 5 {
		if s, err = startOn(ctx, choosePort, o, bin, search.as); !errors.Is(err, ErrPortTaken) || o.Port != 0 {
			break
		}
	}
	return s, err
}

// startOn starts a server on a port. It returns ErrPortTaken if another program has taken the port in the meantime.
func startOn(ctx context.Context, choosePort func() (int, error), o Options, bin binaries, as account) (*Server,
	error) {
	port, err := choosePort()
	if err != nil {
		return nil, err
	}
	f, err := openFolder(ctx, o.DataDir, as)
	if err != nil {
		return nil, err
	}
	if o.Fresh {
		err = f.empty()
	}
	var password string
	if err == nil && o.Template != "" {
		o.Superuser = ""
		o.Password, err = folder{path: o.Template}.password(bin, "")
	}
	if err == nil {
		password, err = f.password(bin, o.Password)
	}
	if err == nil {
		o.Superuser, err = f.superuser(o.Superuser)
	}
	var k *keeper
	if err == nil {
		k, err = startKeeper(f, bin, as, password, o, settings(o, port))
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	s := &Server{stop: sync.OnceValue(k.stop), url: url.URL{
		Scheme: "postgres", User: url.UserPassword(o.Superuser, password), Host: "127.0.0.1:" + strconv.Itoa(port),
		RawQuery: "sslmode=disable",
	}}
	if err := waitReady(ctx, s, k); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// settings returns the server's arguments. The last value of a setting wins.
func settings(o Options, port int) (args []string) {
	// mmap puts shared memory into the data folder, since a container's /dev/shm is too small for it.
	set := []string{"max_connections=300", "timezone=UTC", "log_timezone=UTC", "dynamic_shared_memory_type=mmap"}
	if !o.Durable {
		set = append(set, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
	}
	if o.DataDir == "" {
		set = append(set, "max_wal_size=256MB") // the folder may be in memory
	}
	for name, value := range o.Settings {
		set = append(set, name+"="+value)
	}
	// The package relies on these settings, so nothing overrides them. The error of a failed start contains the end of the
	// log.
	set = append(set, "port="+strconv.Itoa(port), "listen_addresses=127.0.0.1", "unix_socket_directories=",
		"logging_collector=off")
	for _, s := range set {
		args = append(args, "-c", s)
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

// ErrPortTaken is the error of a start on a port that another program uses.
var ErrPortTaken = errors.New("another program has taken the port")

// waitReady returns nil as soon as a client can connect to the server.
func waitReady(ctx context.Context, s *Server, k *keeper) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("it did not answer within %v", startLimit))
	defer cancel()
	// After the server has ended, anything that answers on its port is another program.
	defer context.AfterFunc(k.ended, cancel)()
	for ctx.Err() == nil {
		if conn, err := pgx.Connect(ctx, s.URL("postgres")); err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	switch tail := k.logTail(); {
	case k.ended.Err() != nil && strings.Contains(tail, "could not create any TCP/IP sockets"):
		return ErrPortTaken
	case k.ended.Err() != nil:
		return fmt.Errorf("it ended at once (%w): %s", k.status, tail)
	case errors.Is(ctx.Err(), context.Canceled):
		return context.Cause(ctx)
	default:
		return fmt.Errorf("%w: %s", context.Cause(ctx), tail)
	}
}
