//go:build !windows

package pgserver_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gemworker/gem/internal/postgres/pgserver"
)

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Options{})
	tr := tracesOf(t, s.URL("postgres"))
	open := connect(t, s.URL("postgres"))
	defer open.Close(t.Context())

	if len(processes(t, tr)) == 0 || !exists(tr.folder) {
		t.Fatal("the test looks for the server in the wrong place")
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if left := processes(t, tr); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
	if exists(tr.folder) {
		t.Errorf("%s is left", tr.folder)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("the second Stop: %v", err)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		o    pgserver.Options
		want map[string]string
	}{
		"default": {want: map[string]string{
			"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "300",
			"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
			"server_encoding": "UTF8", "lc_messages": "C", "TimeZone": "UTC", "work_mem": "4MB",
		}},
		"durable": {o: pgserver.Options{Durable: true}, want: map[string]string{
			"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
		}},
		"chosen": {
			o: pgserver.Options{Settings: map[string]string{"work_mem": "7MB", "fsync": "on", "listen_addresses": "*"}},
			want: map[string]string{
				"work_mem": "7MB", "fsync": "on", "listen_addresses": "127.0.0.1",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, start(t, tc.o).URL("postgres"))
			defer conn.Close(t.Context())
			got := map[string]string{}
			for setting := range tc.want {
				var value string
				if err := conn.QueryRow(t.Context(), "select current_setting($1)", setting).Scan(&value); err != nil {
					t.Fatal(err)
				}
				got[setting] = value
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			var collation string
			if err := conn.QueryRow(t.Context(), "select datcollate from pg_database where datname = 'postgres'").
				Scan(&collation); err != nil {
				t.Fatal(err)
			}
			if collation != "C" {
				t.Errorf("the collation is %s, want C", collation)
			}
		})
	}
}

func TestOtherUsersCannotConnect(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Options{})
	for name, user := range map[string]*url.Userinfo{
		"no password":    url.User("postgres"),
		"wrong password": url.UserPassword("postgres", "postgres"),
	} {
		u, err := url.Parse(s.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		u.User = user
		conn, err := pgx.Connect(t.Context(), u.String())
		if err == nil {
			conn.Close(t.Context())
			t.Errorf("%s: the client connected", name)
			continue
		}
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "28P01" {
			t.Errorf("%s: %v, want that the password is refused", name, err)
		}
	}
	info, err := os.Stat(tracesOf(t, s.URL("postgres")).folder)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, want 0700", info.Mode().Perm())
	}
}

func TestCtrlCDoesNotReachTheServer(t *testing.T) {
	t.Parallel()
	tr := tracesOf(t, start(t, pgserver.Options{}).URL("postgres"))
	if tr.group == syscall.Getpgrp() {
		t.Error("the server is in the process group of this program, which a terminal interrupts")
	}
}

func TestTheServerDoesNotInheritThePipe(t *testing.T) {
	t.Parallel()
	tr := tracesOf(t, start(t, pgserver.Options{}).URL("postgres"))
	pipe, err := os.Readlink(filepath.Join("/proc", itoa(tr.group), "fd/4"))
	if err != nil {
		t.Skip("needs /proc")
	}
	own, err := filepath.Glob(filepath.Join("/proc", itoa(tr.server), "fd/*"))
	if err != nil || len(own) == 0 {
		t.Fatal("no descriptors found", err)
	}
	for _, fd := range own {
		if to, _ := os.Readlink(fd); to == pipe {
			t.Errorf("the server has the pipe as %s", fd)
		}
	}
}

func TestTwoServersGetTwoPorts(t *testing.T) {
	t.Parallel()
	var urls [2]string
	var all sync.WaitGroup
	for i := range urls {
		all.Go(func() {
			s, err := pgserver.Start(t.Context(), pgserver.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { s.Stop() })
			urls[i] = s.URL("postgres")
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	a, b := tracesOf(t, urls[0]), tracesOf(t, urls[1])
	if a.folder == b.folder || a.server == b.server {
		t.Errorf("%v and %v are the same server", a, b)
	}
}

func TestATakenPortIsReplaced(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taken := other.Addr().(*net.TCPAddr).Port
	asked := 0
	choose := func() (int, error) {
		if asked++; asked == 1 {
			return taken, nil
		}
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port, nil
	}
	// The program on the taken port accepts connections and never answers. It must not delay the start.
	s, err := pgserver.StartOnPorts(t.Context(), pgserver.Options{}, choose)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if asked != 2 || strings.Contains(s.URL(""), itoa(taken)) {
		t.Errorf("asked for %d ports, got %s, taken is %d", asked, s.URL(""), taken)
	}
}

func TestTheErrorOfAFailedStartHasTheLog(t *testing.T) {
	t.Parallel()
	w := wrap(t, "", "")
	_, err := pgserver.Start(t.Context(), pgserver.Options{BinDir: w.dir,
		Settings: map[string]string{"work_mem": "a lot"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "work_mem"`) {
		t.Errorf("got %v, want the text of the server's log", err)
	}
	wantGone(t, w.waitFor(t, "postgres"))
}

func TestACancelledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, body := range map[string][2]string{
		"initdb":   {"sleep 1000", ""},
		"postgres": {"", deaf},
		// A shell starts background programs with SIGQUIT ignored, so this one must be killed.
		"a server that ignores signals": {"", "exec sleep 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := "postgres"
			if name == "initdb" {
				program = name
			}
			w := wrap(t, body[0], body[1])
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := pgserver.Start(ctx, pgserver.Options{BinDir: w.dir})
				done <- err
			}()
			tr := w.waitFor(t, program)
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
			wantGone(t, tr)
		})
	}
}

// The timeout interrupts a different step on each run. None may leave anything behind.
func TestAStartThatTimesOutLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, after := range []int{50, 150, 250, 300, 350, 400, 450, 500} {
		t.Run(fmt.Sprint(after, " ms"), func(t *testing.T) {
			t.Parallel()
			w := wrap(t, "", "")
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(after)*time.Millisecond)
			defer cancel()
			s, err := pgserver.Start(ctx, pgserver.Options{BinDir: w.dir})
			if err == nil {
				err = s.Stop()
			} else if errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			if err != nil {
				t.Error(err)
			}
			if exists(filepath.Join(w.notes, "initdb")) {
				wantGone(t, w.waitFor(t, "initdb"))
			}
		})
	}
}

func TestAServerEndsWithItsKilledKeeper(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Options{})
	tr := tracesOf(t, s.URL("postgres"))
	if err := syscall.Kill(tr.group, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	wantGone(t, tr)
}
