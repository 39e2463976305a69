//go:build !windows

package clusters

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// node is Patroni's configuration of one server. Its times are the defaults.
const node = `scope: gem
name: %[1]s
restapi: {listen: "127.0.0.1:%[2]s", connect_address: "127.0.0.1:%[2]s"}
etcd3: {host: "127.0.0.1:%[3]s"}
bootstrap:
  dcs: {ttl: 30, loop_wait: 10, retry_timeout: 10, maximum_lag_on_failover: %[4]d}
  initdb: [{encoding: UTF8}, {locale: C.UTF-8}, {auth: trust}]
postgresql:
  listen: 127.0.0.1:%[5]s
  connect_address: 127.0.0.1:%[5]s
  data_dir: %[6]s/%[1]s
  bin_dir: %[7]s
  pgpass: %[6]s/%[1]s.pass
  authentication: {superuser: {username: postgres, password: x}, replication: {username: replicator, password: x}}
  pg_hba: [host all all 127.0.0.1/32 trust, host replication all 127.0.0.1/32 trust]
  parameters: {unix_socket_directories: %[6]s}
`

// PatronisLag is the lag in bytes up to which Patroni promotes a standby by default. Patroni compares the standby's
// position with the last one that the primary reported, which may be ten seconds old.
const PatronisLag = 1 << 20

// Patroni starts a primary and an asynchronous standby under Patroni with etcd. A standby that lags by more than
// maximumLag bytes is not promoted.
func Patroni(t testing.TB, maximumLag int) *Cluster {
	t.Helper()
	need(t, "etcd", "apt-get install etcd-server")
	need(t, "patroni", "apt-get install patroni")
	c := &Cluster{TB: t, folder: folder(t)}
	p := ports(t, 6)
	client := "http://127.0.0.1:" + p[0]
	c.start("etcd", "etcd", "--data-dir", c.folder+"/etcd", "--listen-client-urls", client, "--advertise-client-urls",
		client, "--listen-peer-urls", "http://127.0.0.1:"+p[1])
	server := func(name, rest, postgres string) (url string) {
		file := filepath.Join(c.folder, name+".yml")
		config := fmt.Sprintf(node, name, rest, p[0], maximumLag, postgres, c.folder, binaries)
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil { //nolint:gosec // another user reads it
			t.Fatal(err)
		}
		cmd := c.start(name, "patroni", file)
		if name == "a" {
			c.manager = cmd
		}
		c.stopAtEnd(filepath.Join(c.folder, name))
		return "postgres://postgres@127.0.0.1:" + postgres + "/postgres?sslmode=disable"
	}
	c.Primary = server("a", p[2], p[3])
	c.await("Patroni starts the primary", c.Primary, "select not pg_is_in_recovery()")
	c.Standby = server("b", p[4], p[5])
	c.await("the standby follows", c.Primary, following)
	return c
}
