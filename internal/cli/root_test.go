package cli

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

func TestEveryCommandExplainsItselfWithAnExample(t *testing.T) {
	t.Parallel()
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() != "help" && !sub.Hidden {
				visit(sub)
			}
		}
		words := strings.Fields(c.CommandPath() + " --help")
		got := inProcess(t.Context(), words[1:]...)
		got.wantCode(t, 0)
		wants(t, got.stdout, c.Short+".\n\n", "\nExamples:\n  ", c.CommandPath())
		if got.stderr != "" {
			t.Errorf("%s --help wrote to stderr: %s", c.CommandPath(), got.stderr)
		}
		for line := range strings.Lines(c.Long) {
			if c.Name() != "worker" && len(line) > 120 {
				t.Errorf("%s --help has a line of %d characters: %s", c.CommandPath(), len(line), line)
			}
		}
	}
	visit(rootCommand(&builtIn))
}

func TestGemAlonePrintsHelp(t *testing.T) {
	t.Parallel()
	got := inProcess(t.Context())
	got.wantCode(t, 0)
	wants(t, got.stdout, "demo", "dev", "migrate", "worker", "call", "receipt", "trace", "explain", "registry", "version")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	got := inProcess(t.Context(), "version")
	got.wantCode(t, 0)
	wants(t, got.stdout, "gem ", "\nregistry ")
	if flag := inProcess(t.Context(), "--version"); flag.stdout != got.stdout {
		t.Errorf("gem --version: got %q, want what gem version prints, %q", flag.stdout, got.stdout)
	}
}

func TestWrongUsageExitsWith2AndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	const id = "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"unknown command": {[]string{"wrker"},
			[]string{`no command "wrker"`, "did you mean worker or workers?", "gem --help"}},
		"unknown registry command": {[]string{"registry", "chek"},
			[]string{`no command "chek"`, "did you mean check?", "gem registry --help"}},
		"help of none": {[]string{"help", "wrker"}, []string{`no command "wrker"`, "did you mean worker or " +
			"workers?"}},
		"unknown flag": {[]string{"call", "--wat"}, []string{"--wat", "gem call --help"}},
		"no tool":      {[]string{"call"}, []string{"the name of a tool"}},
		"unquoted JSON": {[]string{"call", "leads.create", "{name:", "Sam}"},
			[]string{"single quotes", "3 were given"}},
		"argument of none":     {[]string{"worker", "now"}, []string{"no arguments"}},
		"no call id":           {[]string{"receipt"}, []string{"one call id"}},
		"not a uuid, receipt":  {[]string{"receipt", "42"}, []string{`"42" is not a call id`, "uuid"}},
		"not a uuid, trace":    {[]string{"trace", id + "0"}, []string{"is not a call id"}},
		"not a uuid, explain":  {[]string{"explain", "latest"}, []string{"is not a call id"}},
		"timeout without wait": {[]string{"call", "x.y", "--timeout", "1s"}, []string{"needs --wait"}},
		"negative timeout": {[]string{"call", "x.y", "--wait", "--timeout", "-1s"},
			[]string{"must be 0 (no limit) or more"}},
		"no duration": {[]string{"call", "x.y", "--wait", "--timeout", "soon"}, []string{"soon"}},
		"run-at without a zone": {[]string{"call", "x.y", "--run-at", "2030-01-01 10:00"},
			[]string{"--run-at", "2027-01-31T15:04:05Z", "366 days"}},
		"priority is a word": {[]string{"call", "x.y", "--priority", "high"}, []string{"high"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := inProcess(t.Context(), test.args...)
			got.wantCode(t, exitUsage)
			wants(t, got.stderr, test.want...)
			wants(t, got.stderr, " --help`.\n")
			if got.stdout != "" {
				t.Errorf("stdout: got %q, want nothing", got.stdout)
			}
		})
	}
}

func TestWrongConfigurationExitsWith2(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env  []string
		args []string
		want []string
	}{
		"no database, worker":  {nil, []string{"worker"}, []string{"DATABASE_URL"}},
		"no database, migrate": {nil, []string{"migrate"}, []string{"DATABASE_URL"}},
		"no database, call":    {nil, []string{"call", "os.health_check"}, []string{"DATABASE_URL"}},
		"wrong number": {[]string{"DATABASE_URL=postgres://h/d", "WORKER_CONCURRENCY=many"}, []string{"worker"},
			[]string{"WORKER_CONCURRENCY", "many"}},
		"wrong number, demo": {[]string{"WORKER_CONCURRENCY=0"}, []string{"demo"}, []string{"WORKER_CONCURRENCY"}},
		"wrong level": {[]string{"DATABASE_URL=postgres://h/d", "LOG_LEVEL=loud"}, []string{"worker"},
			[]string{"LOG_LEVEL", "loud"}},
		"no such registry": {[]string{"DATABASE_URL=postgres://h/d", "TOOLS_REGISTRY=/nowhere.json"}, []string{"worker"},
			[]string{"/nowhere.json"}},
		"no connection string": {[]string{"DATABASE_URL=postgres://u:s3cret@h:port/d"}, []string{"worker"},
			[]string{"DATABASE_URL"}},
		"no connection string ": {[]string{"DATABASE_URL=postgres://u:s3cret@h:port/d"}, []string{"call", "x.y"},
			[]string{"DATABASE_URL"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := gemWith(t, test.env, test.args...)
			got.wantCode(t, exitUsage)
			wants(t, got.stderr, test.want...)
			if strings.Contains(got.stderr+got.stdout, "s3cret") {
				t.Errorf("the password is in the output:\n%s", got.stderr)
			}
		})
	}
}

func TestDatabaseThatIsNotThere(t *testing.T) {
	t.Parallel()
	url := "postgres://gem:s3cret@" + closedAddress(t) + "/gem?sslmode=disable"
	for name, args := range map[string][]string{
		"worker":  {"worker", "--patience", "300ms"},
		"migrate": {"migrate", "--patience", "300ms"},
		"call":    {"call", "os.health_check"},
		"receipt": {"receipt", "0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55"},
		"demo":    {"demo", "--use-database"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := gemWith(t, []string{"DATABASE_URL=" + url}, args...)
			code := exitFailed
			if name == "call" {
				code = exitUsage // the call was not made
			}
			got.wantCode(t, code)
			wants(t, got.stderr, "Postgres cannot be reached: ", "connection refused")
			if strings.Contains(got.stderr+got.stdout, "s3cret") {
				t.Errorf("the password is in the output:\n%s", got.stderr)
			}
		})
	}
}

func TestADatabaseThatIsNotThereIsTriedAgain(t *testing.T) {
	t.Parallel()
	url := "postgres://gem:s3cret@" + closedAddress(t) + "/gem?sslmode=disable"
	for _, command := range []string{"worker", "migrate"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			p := startGem(t, []string{"DATABASE_URL=" + url}, command, "--patience", "1h")
			said := p.stderr.waitFor(t, "trying again")
			wants(t, said, "connection refused")
			if strings.Contains(said, "s3cret") {
				t.Errorf("the password is in the output:\n%s", said)
			}
			p.signal(t, syscall.SIGINT)
			p.wait(t)
		})
	}
}

// closedAddress is one where nobody listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// The commands that a person runs name the database that they use in the same words.
func TestCommandsNameTheDatabaseThatTheyUse(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"again", "answer", "approve", "audit", "call", "cancel", "deny", "explain", "list",
		"prune", "questions", "receipt",
		"replay", "resume", "roles", "rules replay", "rules require", "status", "trace", "workers"} {
		got := inProcess(t.Context(), append(strings.Fields(command), "--help")...)
		wants(t, strings.Join(strings.Fields(got.stdout), " "), strings.Join(strings.Fields(usesDatabase), " "))
		if strings.Contains(got.stdout, "Needs DATABASE_URL") {
			t.Errorf("gem %s --help says that it needs DATABASE_URL", command)
		}
	}
}
