package deploy_test

import (
	"debug/elf"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/cli"
	"go.yaml.in/yaml/v3"
)

// testDockerfile is that of the profile "test".
const testDockerfile = "deploy/test.Dockerfile"

func TestTheImagesBinaryIsStaticAndKnowsItsVersion(t *testing.T) {
	t.Parallel()
	// The linker does not report an -X that names no variable, so this tests the Dockerfile's own flags.
	if _, out := gem(t, nil, "version"); !strings.HasPrefix(out, "gem v1.2.3 (commit 0123456789ab)\n") {
		t.Errorf("gem version: got %q, want the version and the commit of the build", out)
	}
	if runtime.GOOS != "linux" {
		return // where binaries have another format
	}
	path, _ := build()
	program, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, part := range program.Progs {
		if part.Type == elf.PT_INTERP {
			t.Error("the binary needs a dynamic linker, which the image does not have")
		}
	}
}

func TestTheImageRunsAWorkerWithoutRightsOrAShell(t *testing.T) {
	t.Parallel()
	dockerfile := readFile(t, "Dockerfile")
	wantBases(t, dockerfile)
	wantBases(t, readFile(t, testDockerfile))
	before, _, _ := strings.Cut(dockerfile, "RUN go mod download")
	if strings.Contains(before, "COPY . .") || !strings.Contains(before, "COPY go.mod go.sum ./") {
		t.Error("want only go.mod and go.sum before go mod download, so that it is repeated only when they change")
	}
	_, last, _ := strings.Cut(dockerfile, "\nFROM ${RUN_IMAGE}\n")
	if !regexp.MustCompile(`(?m)^USER ([1-9]\d*):([1-9]\d*)$`).MatchString(last) {
		t.Error("USER: want the numbers of a user and a group that are not root, so that a platform can see that")
	}
	wantCommand(t, "the Dockerfile's CMD", imageCommand(t), "worker")
}

// imageCommand returns the command of the image's containers. It must have the exec form: the other form needs a
// shell.
func imageCommand(t *testing.T) (words []string) {
	t.Helper()
	for _, line := range regexp.MustCompile(`(?m)^(?:ENTRYPOINT|CMD) (.*)$`).
		FindAllStringSubmatch(readFile(t, "Dockerfile"), -1) {
		var part []string
		if err := json.Unmarshal([]byte(line[1]), &part); err != nil {
			t.Errorf("%s: %v", line[0], err)
		}
		words = append(words, part...)
	}
	return words
}

// dockerfileArgs returns the arguments of a Dockerfile, with their defaults.
func dockerfileArgs(text string) map[string]string {
	args := map[string]string{}
	for _, found := range regexp.MustCompile(`(?m)^ARG (\w+)=?(.*)$`).FindAllStringSubmatch(text, -1) {
		args[found[1]] = found[2]
	}
	return args
}

// wantBases checks that a Dockerfile can be built from mirrors, and without BuildKit.
func wantBases(t *testing.T, text string) {
	t.Helper()
	if regexp.MustCompile(`(?mi)^#\s*syntax\s*=|^RUN --`).MatchString(text) {
		t.Error("a syntax line, or an option of RUN, needs BuildKit")
	}
	args := dockerfileArgs(text)
	for _, from := range regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(text, -1) {
		if base := os.Expand(from[1], func(name string) string { return args[name] }); base == "" || base == from[1] {
			t.Errorf("FROM %s: want an argument with a default, so that a mirror can stand in", from[1])
		}
	}
}

func TestWhatIsSecretStaysOutOfTheImage(t *testing.T) {
	t.Parallel()
	ignored := strings.Fields(readFile(t, ".dockerignore"))
	for _, want := range []string{".git", ".env", "deploy/mcp.tokens"} {
		if !slices.Contains(ignored, want) {
			t.Errorf(".dockerignore does not name %s", want)
		}
	}
}

// service is the part of a service of docker-compose.yml that these tests check.
type service struct {
	Image string
	Build struct {
		Dockerfile string
		Args       map[string]string
	}
	Entrypoint      []string
	Command         []string
	Environment     map[string]*string
	Ports           []string
	Scale           int
	Restart         string
	StopGracePeriod string   `yaml:"stop_grace_period"`
	ReadOnly        bool     `yaml:"read_only"`
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	Tmpfs           string
	Healthcheck     struct {
		Test    []string
		Timeout string
	}
	DependsOn map[string]struct{ Condition string } `yaml:"depends_on"`
}

func services(t *testing.T) map[string]service {
	t.Helper()
	var file struct{ Services map[string]service }
	if err := yaml.Unmarshal([]byte(readFile(t, "docker-compose.yml")), &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Services) < 6 {
		t.Fatalf("%d services", len(file.Services))
	}
	return file.Services
}

func TestComposeBuildsFromTheDockerfilesAndEachImageCanBeReplaced(t *testing.T) {
	t.Parallel()
	for name, s := range services(t) {
		if s.Image != "" {
			base, _, _ := strings.Cut(unset(s.Image), "@") // the digest, if make pin wrote one
			if base == s.Image || strings.HasPrefix(base, "postgres:") && base != "postgres:17" {
				t.Errorf("%s: the image is %s, want one that a variable replaces, and Postgres 17", name, s.Image)
			}
			continue
		}
		dockerfile := "Dockerfile"
		if s.Build.Dockerfile != "" {
			dockerfile = s.Build.Dockerfile
		}
		has := dockerfileArgs(readFile(t, dockerfile))
		for arg, value := range s.Build.Args {
			if byDefault, known := has[arg]; !known || byDefault != unset(value) {
				t.Errorf("%s: %s is %q by default, and in the %s %q (%v)", name, arg, unset(value), dockerfile, byDefault, known)
			}
		}
	}
}

func TestComposeRunsTheProgram(t *testing.T) {
	t.Parallel()
	all := services(t)
	for _, name := range []string{"migrate", "worker"} {
		wantCommand(t, name, append([]string{"/gem"}, all[name].Command...), name)
	}
	worker := all["worker"]
	check := worker.Healthcheck
	if len(check.Test) < 2 || check.Test[0] != "CMD" {
		t.Fatalf("worker: the health check is %q, want a CMD: there is no shell", check.Test)
	}
	wantCommand(t, "worker: healthcheck", check.Test[1:], "healthcheck")
	if timeout, err := time.ParseDuration(check.Timeout); err != nil || timeout <= cli.HealthDeadline {
		t.Errorf("worker: the health check's timeout is %q, and gem healthcheck may take %s to say what is wrong",
			check.Timeout, cli.HealthDeadline)
	}

	env := map[string]string{}
	for name, value := range worker.Environment {
		env[name] = ""
		if value != nil {
			env[name] = unset(*value)
		}
		// The database's URL contains a password that the shell may set.
		if secret.MatchString(name) && name != "DATABASE_URL" && value != nil {
			t.Errorf("worker: %s is a secret, and has a value", name)
		}
	}
	stop, err := time.ParseDuration(worker.StopGracePeriod)
	if err != nil {
		t.Error(err)
	}
	checkWorker(t, env, stop)
	if env["DATABASE_URL"] == "" {
		t.Error("worker: DATABASE_URL is not set")
	}
	notPassed := map[string]string{
		"DIRECT_URL": "there is no pooler",
		"WORKER_ID":  "the container's name tells the workers apart, and gem healthcheck finds its own by it",
	}
	for _, name := range variables(t) {
		reason, left := notPassed[name]
		if _, set := env[name]; set == left {
			t.Errorf("worker: %s: passed on: %v, and should be: %v %s", name, set, !left, reason)
		}
	}
	if worker.Scale < 2 {
		t.Errorf("worker: scale is %d, want 2 or more, so that one can be lost", worker.Scale)
	}
}

func TestComposeStartsInOrderAndIsClosed(t *testing.T) {
	t.Parallel()
	all := services(t)
	// docker compose up --wait treats a finished container as a failure, unless another one waits for its end.
	// Migrations grant rights to the roles that exist.
	for name, after := range map[string]string{"worker": "migrate", "mcp": "migrate", "dashboard": "migrate",
		"migrate": "roles"} {
		if got := all[name].DependsOn[after].Condition; got != "service_completed_successfully" {
			t.Errorf("%s comes after %s on the condition %q", name, after, got)
		}
	}
	for name, want := range map[string]string{"migrate": "", "roles": "", "worker": "unless-stopped",
		"postgres": "unless-stopped"} {
		if got := all[name].Restart; got != want {
			t.Errorf("%s: restart is %q, want %q", name, got, want)
		}
	}
	for name, s := range all {
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s: the port %s is open to the network: want 127.0.0.1", name, port)
			}
		}
		hardened := s.ReadOnly && slices.Equal(s.CapDrop, []string{"ALL"}) &&
			slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"})
		if name != "postgres" && name != "test" && !hardened {
			t.Errorf("%s: want read_only, cap_drop ALL and no-new-privileges", name)
		}
	}
	// The image of Postgres declares a volume there, and docker compose down keeps an unnamed one.
	if got := all["roles"].Tmpfs; got != "/var/lib/postgresql/data" {
		t.Errorf("roles: tmpfs is %q: each container would leave an empty volume", got)
	}
	if secret := all["postgrest"].Environment["PGRST_JWT_SECRET"]; secret == nil || len(unset(*secret)) < 32 {
		t.Error("postgrest: PostgREST wants a JWT secret of 32 characters or more")
	}
}

func TestTheVariablesOfComposeHaveDefaultsAndAreExplained(t *testing.T) {
	t.Parallel()
	explained := readFile(t, "docs/docker.md")
	used := map[string]bool{}
	for _, found := range regexp.MustCompile(`\$\{(\w+)([^}]*)\}`).FindAllStringSubmatch(readFile(t, "docker-compose.yml"),
		-1) {
		used[found[1]] = true
		if !strings.HasPrefix(found[2], ":-") {
			t.Errorf("%s has no default: want ${%s:-…}", found[1], found[1])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if !strings.Contains(explained, "`"+name+"`") {
			t.Errorf("%s is not explained in docs/docker.md", name)
		}
	}
}

func TestDockerComposeTakesTheFile(t *testing.T) {
	t.Parallel()
	compose := []string{"docker-compose"}
	if _, err := exec.LookPath("docker-compose"); err != nil {
		compose = []string{"docker", "compose"}
		if exec.CommandContext(t.Context(), "docker", "compose", "version").Run() != nil {
			const missing = "neither docker-compose nor docker compose is there: install one (Debian: apt-get install " +
				"docker-compose)"
			if os.Getenv("GEM_TEST_REQUIRE") != "" {
				t.Fatal(missing)
			}
			t.Skip(missing)
		}
	}
	file := filepath.Join(root, "docker-compose.yml")
	args := slices.Concat(compose, []string{"--file", file, "--profile", "test", "--profile", "supabase", "--profile",
		"mcp", "--profile", "dashboard", "config", "--quiet"})
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// go test does not report a -run that matches no test, so this checks the page's example.
func TestTheTestsThatDockerMDRunsAreThere(t *testing.T) {
	t.Parallel()
	commands := regexp.MustCompile(`go test \./(\S+) -run (\w+)`).FindAllStringSubmatch(readFile(t, "docs/docker.md"), -1)
	if len(commands) == 0 {
		t.Error("docs/docker.md shows no way to run a single test")
	}
	for _, command := range commands {
		files, err := filepath.Glob(filepath.Join(root, command[1], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`(?m)^func Test\w*` + command[2])
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && named.Match(text)
		}) {
			t.Errorf("%s: there is no such test", command[0])
		}
	}
}

// unset returns a value of docker-compose.yml if the shell sets nothing.
func unset(value string) string {
	return os.Expand(value, func(name string) string {
		_, byDefault, _ := strings.Cut(name, ":-")
		return byDefault
	})
}
