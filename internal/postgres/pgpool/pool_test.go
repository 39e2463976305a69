package pgpool_test

import (
	"testing"
	"time"

	"github.com/gemworker/gem/internal/postgres/pgpool"
)

func TestAnIdleConnectionIsClosedSoonAfterItsTime(t *testing.T) {
	t.Parallel()
	for wanted, want := range map[time.Duration]time.Duration{0: 5 * time.Minute, 30 * time.Second: 30 * time.Second} {
		pool, err := pgpool.Open(t.Context(), "postgres://u:p@127.0.0.1:1/d", pgpool.Options{CloseIdle: wanted})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if c := pool.Config(); c.MaxConnIdleTime != want || c.HealthCheckPeriod > want/2 {
			t.Errorf("%s: closed after %s, looked at each %s", wanted, c.MaxConnIdleTime, c.HealthCheckPeriod)
		}
	}
}
