package cli

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
)

func TestHealthcheckOfARunningWorker(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	env := []string{"DATABASE_URL=" + url, "WORKER_ID=mine"}
	worker := startWorker(t, url, "WORKER_ID=mine")
	got := gemWith(t, env, "healthcheck")
	got.wantCode(t, exitDone)
	if !strings.HasPrefix(got.stdout, "mine-") || !strings.HasSuffix(got.stdout, " is alive\n") {
		t.Errorf("stdout: got %q, want the worker's id and that it is alive", got.stdout)
	}

	worker.signal(t, syscall.SIGTERM)
	worker.wait(t)
	got = gemWith(t, env, "healthcheck")
	got.wantCode(t, exitFailed)
	wants(t, got.stderr, "mine-", " stopped at ")
}

func TestHealthcheckKnowsItsWorkerByNameAndHeartbeat(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		name    string
		workers []string // that are alive
		dead    []string
		code    int
		want    string
	}{
		"mine": {"mine", []string{"mine-0123abcd"}, nil, exitDone, "mine-0123abcd is alive\n"},
		"mine beside others": {"mine", []string{"other-0123abcd", "mine-0123abcd"}, nil, exitDone,
			"mine-0123abcd is alive\n"},
		"one that came back": {"mine", []string{"mine-00000002"}, []string{"mine-00000001", "mine-00000003"},
			exitDone, "mine-00000002 is alive\n"},
		"a name with an end of its own": {"mine", []string{"mine-0123abcd-0123abcd"}, nil, exitFailed, "no worker named"},
		"a name that is a pattern":      {"m_n%", []string{"m_n%-0123abcd"}, nil, exitDone, "m_n%-0123abcd is alive\n"},
		"a pattern that fits others": {"m_n%", []string{"mine-0123abcd"}, nil, exitFailed,
			`no worker named "m_n%" is known`},
		"a longer name":                     {"mine", []string{"mine-too-0123abcd"}, nil, exitFailed, "no worker named"},
		"another's longer name, as its end": {"mine", []string{"not-mine-0123abcd"}, nil, exitFailed, "no worker named"},
		"no random end":                     {"mine", []string{"mine", "mine-x123abcd"}, nil, exitFailed, "no worker named"},
		"nobody": {"mine", nil, nil, exitFailed,
			`no worker named "mine" is known to this database`},
		"one that is silent": {"mine", nil, []string{"mine-0123abcd"}, exitFailed,
			"mine-0123abcd is silent: its last heartbeat was 10 min"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			url := newDatabase(t)
			s := scene{t, testdb.Pool(t, url)}
			for _, id := range test.workers {
				s.worker(id, 1)
			}
			for _, id := range test.dead {
				s.worker(id, 1)
				s.silence(id)
			}
			got := gemWith(t, []string{"DATABASE_URL=" + url, "WORKER_ID=" + test.name}, "healthcheck")
			got.wantCode(t, test.code)
			wants(t, got.stdout+got.stderr, test.want)
			oneLine(t, got)
		})
	}
}

func TestHealthcheckFailsWith1WhateverIsWrong(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env  []string
		want string
	}{
		"no variable":          {nil, "DATABASE_URL is not set"},
		"no connection string": {[]string{"DATABASE_URL=postgres://u:s3cret@h:port/d"}, "DATABASE_URL"},
		"nobody listens": {[]string{"DATABASE_URL=postgres://u:s3cret@" + closedAddress(t) + "/d?sslmode=disable"},
			"Postgres cannot be reached: "},
		"nobody answers": {[]string{playDeadline + "=",
			"DATABASE_URL=postgres://u:s3cret@" + silentAddress(t) + "/d?sslmode=disable"}, "Postgres did not answer within 3s"},
		"a database without us": {[]string{"DATABASE_URL=" + testdb.NewEmpty(t)}, "run `gem migrate`"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := gemWith(t, test.env, "healthcheck")
			got.wantCode(t, exitFailed)
			wants(t, got.stderr, test.want)
			oneLine(t, got)
			if strings.Contains(got.stderr, "s3cret") {
				t.Errorf("the password is in the output:\n%s", got.stderr)
			}
		})
	}
}

// oneLine is all that a health check prints: platforms keep its output, and show it to people.
func oneLine(t *testing.T, got commandResult) {
	t.Helper()
	if strings.Count(got.stdout+got.stderr, "\n") != 1 {
		t.Errorf("got %q and %q, want one line", got.stdout, got.stderr)
	}
}

// silentAddress returns an address that accepts connections and never answers.
func silentAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}
