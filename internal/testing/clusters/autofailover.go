//go:build !windows

package clusters

import (
	"path/filepath"
	"testing"
)

// AutoFailover starts a primary and an asynchronous standby under pg_auto_failover, with its monitor.
func AutoFailover(t testing.TB) *Cluster {
	t.Helper()
	need(t, "pg_autoctl", "apt-get install pg-auto-failover-cli postgresql-15-auto-failover")
	c := &Cluster{TB: t, folder: folder(t)}
	p := ports(t, 3)
	create := func(kind, name, port string, more ...string) (url string) {
		data := filepath.Join(c.folder, name)
		args := append([]string{"create", kind, "--pgdata", data, "--pgport", port, "--hostname", "127.0.0.1",
			"--auth", "trust", "--no-ssl"}, more...)
		c.run(name, "pg_autoctl", args...)
		c.stopAtEnd(data)
		cmd := c.start(name, "pg_autoctl", "run", "--pgdata", data)
		if name == "a" {
			c.manager = cmd
		}
		return "postgres://postgres@127.0.0.1:" + port + "/postgres?sslmode=disable"
	}
	create("monitor", "monitor", p[0])
	monitor := "postgres://autoctl_node@127.0.0.1:" + p[0] + "/pg_auto_failover?sslmode=disable"
	c.await("the monitor starts", monitor, "select true")
	// Without a quorum, commits do not wait for the standby.
	more := []string{"--monitor", monitor, "--replication-quorum", "false", "--name"}
	c.Primary = create("postgres", "a", p[1], append(more, "a")...)
	c.await("the primary starts", c.Primary, "select not pg_is_in_recovery()")
	c.Standby = create("postgres", "b", p[2], append(more, "b")...)
	c.await("the standby follows", c.Primary, following)
	c.await("the monitor knows the standby", monitor, "select count(*) = 2 and bool_and(reportedstate = goalstate) and "+
		"bool_or(reportedstate = 'secondary') from pgautofailover.node")
	return c
}
