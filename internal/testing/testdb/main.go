package testdb

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main is the body of a TestMain. It runs the tests, stops the server, and fails if a test left a goroutine behind. It
// does not return. A package without it also works: its server stops when the test binary has ended. But leaked
// goroutines are not detected, and on a server of TEST_DATABASE_URL the template is not dropped.
func Main(m *testing.M) {
	runMany()
	code := m.Run()
	if err := stopServer(); err != nil {
		fmt.Fprintln(os.Stderr, "testdb: stop the server:", err)
		code = max(code, 1)
	}
	// After a failed test, leaked goroutines are not reported.
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "testdb: a test left a goroutine behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// runMany runs four tests at once, unless a flag sets another number. Tests wait for Postgres and for workers more than
// they compute.
func runMany() {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		_ = flag.Set("test.parallel", "4")
	}
}
