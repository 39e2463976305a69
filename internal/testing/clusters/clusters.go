//go:build !windows

// Package clusters runs a primary and an asynchronous standby under a cluster manager that promotes the standby by
// itself, for the tests.
package clusters

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/jackc/pgx/v5"
)

// binaries is the folder of the Postgres version that Debian's packages of the managers use.
const binaries = "/usr/lib/postgresql/15/bin"

// Cluster is a primary and its standby, each run by a manager's process.
type Cluster struct {
	testing.TB
	Primary, Standby string // the URLs of the database postgres, for the superuser

	folder  string
	manager *exec.Cmd // of the primary
}

// folder creates a folder in which the servers' user may write. It is removed after the test.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "gem-cluster-")
	if err == nil {
		err = os.Chmod(dir, 0o777) //nolint:gosec // the servers have a user of their own
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// ports returns n free ports.
func ports(t testing.TB, n int) (free []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp4", "127.0.0.1:0") //nolint:noctx // returns at once
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		free = append(free, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return free
}

// need fails the test unless a program is installed.
func need(t testing.TB, program, hint string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Fatalf("%v: %s", err, hint)
	}
}

// command returns a command that runs as the servers' user. Its output goes to a file in the cluster's folder.
func (c *Cluster) command(log, program string, args ...string) *exec.Cmd {
	c.Helper()
	cmd, err := pgserver.Command(program, args...)
	if err != nil {
		c.Fatal(err)
	}
	out, err := os.OpenFile(filepath.Join(c.folder, log+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = out.Close() })
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(cmd.Env, "HOME="+c.folder, "XDG_RUNTIME_DIR="+c.folder+"/run", "PATH="+binaries+":"+os.Getenv("PATH"))
	return cmd
}

// run runs a command and waits for its end.
func (c *Cluster) run(log, program string, args ...string) {
	c.Helper()
	if err := c.command(log, program, args...).Run(); err != nil {
		c.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, c.tail(log))
	}
}

// start runs a command until the end of the test.
func (c *Cluster) start(log, program string, args ...string) *exec.Cmd {
	c.Helper()
	cmd := c.command(log, program, args...)
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		kill(cmd)
		if c.Failed() {
			c.Logf("%s:\n%s", log, c.tail(log))
		}
	})
	return cmd
}

// kill ends a command and its process group.
func kill(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Wait()
}

// killServer ends the Postgres of a data folder.
func killServer(data string) error {
	file, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(file), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

func (c *Cluster) tail(log string) string {
	out, _ := os.ReadFile(filepath.Join(c.folder, log+".log"))
	return string(out[max(0, len(out)-4000):])
}

// KillPrimary ends the primary and its manager, as if their machine had failed.
func (c *Cluster) KillPrimary() {
	c.Helper()
	kill(c.manager)
	if err := killServer(filepath.Join(c.folder, "a")); err != nil {
		c.Fatal(err)
	}
}

// stopAtEnd stops the Postgres of a data folder when the test ends.
func (c *Cluster) stopAtEnd(data string) {
	c.Cleanup(func() {
		if err := killServer(data); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			c.Errorf("end the server: %v", err)
		}
	})
}

// await waits until a query returns true. The servers may still be starting.
func (c *Cluster) await(what, url, sql string) {
	c.Helper()
	var last error
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		var yes bool
		if yes, last = ask(c.Context(), url, sql); yes {
			return
		}
	}
	c.Fatalf("not within two minutes: %s: %v", what, last)
}

func ask(ctx context.Context, url, sql string) (yes bool, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, sql).Scan(&yes)
	return yes, err
}

// following is true on a primary once its standby receives its commits.
const following = "select exists (select 1 from pg_stat_replication where state = 'streaming' and " +
	"application_name not like 'pg\\_basebackup%')"
