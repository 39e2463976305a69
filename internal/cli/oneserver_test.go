package cli

import (
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gemworker/gem/handlers/builtin"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
)

// Behind a load balancer that distributes connections, each change of server would be mistaken for a failover.
func TestAWorkerDoesNotStartOnSeveralServers(t *testing.T) {
	t.Parallel()
	var hosts []string
	var address *url.URL
	for range 2 {
		s := testdb.Private(t, pgserver.Options{})
		if err := migrations.Up(t.Context(), s.URL("postgres"), migrations.Sources(builtin.Domains()...)...); err != nil {
			t.Fatal(err)
		}
		var err error
		if address, err = url.Parse(s.URL("postgres")); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, address.Host)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var n atomic.Int64
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", hosts[n.Add(1)%2])
			if err != nil {
				_ = conn.Close()
				continue
			}
			for _, c := range [][2]net.Conn{{conn, to}, {to, conn}} {
				go func() {
					_, _ = io.Copy(c[0], c[1])
					_ = c[0].Close()
				}()
			}
		}
	}()
	address.Host = l.Addr().String()
	got := gemWith(t, []string{"DATABASE_URL=" + address.String() + "&sslmode=disable"}, "worker")
	got.wantCode(t, exitUsage)
	wants(t, got.stderr, "DATABASE_URL leads to 2 different Postgres servers")
	if strings.Contains(got.stderr, "worker started") {
		t.Error("it started")
	}
}
