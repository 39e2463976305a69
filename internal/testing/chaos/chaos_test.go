//go:build !windows

package chaos

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestMain(m *testing.M) {
	if os.Getenv(childMode) == asDoomed {
		doomed()
	}
	Child()
	testdb.Main(m)
}

// Without variables this is a short run with each kind of failure. Its verdict does not depend on the speed of the
// machine. With GEM_TEST_LONG=1 it takes a minute. `make chaos` makes a long run, which also limits the recovery time.
//
//	CHAOS_DURATION  duration, such as 10m; unset: the short run
//	CHAOS_CALLS     number of calls; the default of a long run is 20000
//	CHAOS_WORKERS   number of workers; the default is 3
//	CHAOS_SEED      determines the events and their order; the default is the time
//	CHAOS_LOGS      a folder for the logs of the workers, which is created
func TestNothingIsLostAndNothingHappensTwiceWhateverDies(t *testing.T) {
	o := Options{Rules: true, Seed: uint64(time.Now().UnixMilli() % 1_000_000), Logs: os.Getenv("CHAOS_LOGS"),
		Pace: 900 * time.Millisecond, Longest: 7 * time.Second}
	if os.Getenv("GEM_TEST_LONG") != "" {
		o.Duration, o.Calls = time.Minute, 2000
	}
	if long := os.Getenv("CHAOS_DURATION"); long != "" {
		d, err := time.ParseDuration(long)
		if err != nil || d <= 0 {
			t.Fatalf("CHAOS_DURATION is %q: it has the form 10m or 90s", long)
		}
		o.Duration, o.Calls, o.RecoveryLimit, o.Pace, o.Longest = d, 20000, 10*time.Second, 0, 0
		o.Say = func(line string) { fmt.Println(line) }
	}
	number(t, "CHAOS_CALLS", &o.Calls)
	number(t, "CHAOS_WORKERS", &o.Workers)
	number(t, "CHAOS_SEED", &o.Seed)

	if o.Logs != "" {
		if err := os.MkdirAll(o.Logs, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println("chaos with seed", o.Seed)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Print(r)
	for _, f := range r.Faults {
		t.Errorf("seed %d: %s", o.Seed, f)
	}
}

func number[T int | uint64](t *testing.T, variable string, into *T) {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 {
		t.Fatalf("%s is %q: it must be a number above 0", variable, text)
	}
	*into = T(n)
}
