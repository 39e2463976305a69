package deploy_test

import (
	"debug/elf"
	"fmt"
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

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/registry"
	"go.yaml.in/yaml/v3"
)

// notPassed are the variables that docker-compose.yml gives no worker.
var notPassed = map[string]string{
	"DIRECT_URL":     "there is no pooler",
	"TOOLS_REGISTRY": "a path on the host is none in the container",
	"WORKER_ID":      "the container's name tells the workers apart, and gem healthcheck finds its own by it",
}

// testDockerfile is that of the profile "test".
const testDockerfile = "deploy/test.Dockerfile"

// servicesOfOthers run images that are not ours.
var servicesOfOthers = []string{"postgres", "roles", "postgrest"}

func TestDockerfileAndComposeFitTheProgram(t *testing.T) {
	for _, problem := range dockerProblems(t, readFile(t, "Dockerfile"), readFile(t, "docker-compose.yml")) {
		t.Error(problem)
	}
}

// Each rule is seen to fail: every case breaks a file in one place.
func TestWhatIsWrongWithADockerfile(t *testing.T) {
	for _, tt := range []struct {
		name     string
		old, new string // the first old becomes new
		want     string // begins the first problem that is found
	}{
		{"a syntax line", "# The image", "# syntax=docker/dockerfile:1\n# The image", "syntax: "},
		{"a fixed base image", "FROM ${RUN_IMAGE}", "FROM gcr.io/distroless/static-debian12", "FROM gcr.io/distroless/static-debian12: "},
		{"an unknown base image", "FROM ${RUN_IMAGE}", "FROM ${BASE_IMAGE}", "FROM ${BASE_IMAGE}: "},
		{"a base image without a default", "ARG RUN_IMAGE=gcr.io/distroless/static-debian12:nonroot", "ARG RUN_IMAGE", "FROM ${RUN_IMAGE}: "},
		{"a mount, which only BuildKit has", "RUN go mod", "RUN --mount=type=cache,target=/root/.cache go mod", "RUN: "},
		{"modules that are downloaded with each change", "COPY go.mod go.sum ./", "COPY . .", "go mod download: "},
		{"no static binary", "CGO_ENABLED=0 ", "", "CGO_ENABLED: "},
		{"a user with a name", "USER 65532:65532", "USER nonroot", "USER: "},
		{"root", "USER 65532:65532", "USER 0:0", "USER: "},
		{"no user", "USER 65532:65532", "", "USER: "},
		{"a command that needs a shell", `CMD ["worker"]`, "CMD worker", "CMD: "},
		{"an unknown command", `CMD ["worker"]`, `CMD ["wroker"]`, "CMD: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			broken := changedAt(t, readFile(t, "Dockerfile"), tt.old, tt.new)
			wantProblem(t, dockerProblems(t, broken, readFile(t, "docker-compose.yml")), tt.want)
		})
	}
}

func TestWhatIsWrongWithADockerComposeYML(t *testing.T) {
	for _, tt := range []struct {
		name     string
		old, new string
		want     string
	}{
		{"not YAML", "services:", "services: [", "yaml:"},
		{"an unknown argument", "VERSION: ${GEM_VERSION:-}", "REVISION: ${GEM_VERSION:-}", "migrate: build: REVISION "},
		{"another default than the Dockerfile's", "-golang:1.26-bookworm", "-golang:1.25", "migrate: build: BUILD_IMAGE "},
		{"no such Dockerfile", "deploy/test.Dockerfile", "deploy/tests.Dockerfile", "test: build: dockerfile "},
		{"a fixed image", "${POSTGRES_IMAGE:-postgres:17}", "postgres:17", "postgres: image: "},
		{"an older Postgres", "${POSTGRES_IMAGE:-postgres:17}", "${POSTGRES_IMAGE:-postgres:14}", "postgres: image: "},
		{"an unknown variable", "LOG_FORMAT:\n", "LOG_FORMATS:\n", "worker: LOG_FORMATS "},
		{"a variable that is left out", "      LOG_FORMAT:\n", "", "worker: LOG_FORMAT "},
		{"a value that is refused", "LOG_FORMAT:\n", "LOG_FORMAT: xml\n", "worker: LOG_FORMAT "},
		{"a secret with a value", "SMTP_PASSWORD:\n", "SMTP_PASSWORD: hunter2\n", "worker: SMTP_PASSWORD "},
		{"one name for two workers", "LOG_FORMAT:\n", "LOG_FORMAT:\n      WORKER_ID: mine\n", "worker: WORKER_ID "},
		{"no database", "      DATABASE_URL: *database\n      # The", "      # The", "worker: DATABASE_URL "},
		{"one worker", "scale: 2", "scale: 1", "worker: scale "},
		{"replicas, which 1.29 ignores", "scale: 2", "deploy: {replicas: 2}", "worker: scale "},
		{"an unknown command", `command: ["migrate"]`, `command: ["migrations"]`, "migrate: command: "},
		{"an unknown health check", `"healthcheck"]`, `"health"]`, "worker: healthcheck: "},
		{"a health check that is cut short", "timeout: 5s\n      retries: 3", "timeout: 3s\n      retries: 3", "worker: healthcheck: "},
		{"no health check", "    healthcheck:\n      test: [\"CMD\", \"/gem\"", "    x-check:\n      test: [\"CMD\", \"/gem\"", "worker: healthcheck: "},
		{"no time to stop", "stop_grace_period: 1m\n    restart: unless-stopped\n    healthcheck:\n      test: [\"CMD\", \"/gem\"",
			"stop_grace_period: 50s\n    restart: unless-stopped\n    healthcheck:\n      test: [\"CMD\", \"/gem\"", "worker: stop_grace_period "},
		{"tools that take longer", "WORKER_SHUTDOWN_GRACE: 45s", "WORKER_SHUTDOWN_GRACE: 29s", "worker: WORKER_SHUTDOWN_GRACE "},
		{"a file system that can be written", "  read_only: true\n", "", "roles: read_only "},
		{"capabilities", "cap_drop: [ALL]", "cap_drop: [NET_RAW]", "roles: cap_drop "},
		{"new privileges", `security_opt: ["no-new-privileges:true"]`, "security_opt: []", "roles: security_opt "},
		{"a volume that nobody asked for", "    tmpfs: /var/lib/postgresql/data\n", "", "roles: tmpfs "},
		{"a worker that stays away", "    restart: unless-stopped\n    healthcheck:\n      test: [\"CMD\", \"/gem\"", "    healthcheck:\n      test: [\"CMD\", \"/gem\"", "worker: restart "},
		{"a migration that starts again", `command: ["migrate"]`, "command: [\"migrate\"]\n    restart: always", "migrate: restart "},
		{"a port for the whole network", `"127.0.0.1:${POSTGRES_PORT`, `"${POSTGRES_PORT`, "postgres: ports: "},
		{"workers beside the migrations", "      migrate:\n        condition: service_completed_successfully", "      postgres:\n        condition: service_healthy", "worker: depends_on: "},
		{"migrations before the roles", "      roles:\n        condition: service_completed_successfully", "      postgres:\n        condition: service_healthy", "migrate: depends_on: "},
		{"a secret that is too short", "${JWT_SECRET:-for-local-use-only-and-known-to-everyone}", "${JWT_SECRET:-secret}", "postgrest: PGRST_JWT_SECRET "},
		{"a variable nobody explains", "${JWT_SECRET:-for", "${JSON_WEB_TOKEN_SECRET:-for", "JSON_WEB_TOKEN_SECRET "},
		{"a variable without a default", "${POSTGRES_PORT:-5432}", "${POSTGRES_PORT}", "POSTGRES_PORT "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			broken := changedAt(t, readFile(t, "docker-compose.yml"), tt.old, tt.new)
			wantProblem(t, dockerProblems(t, readFile(t, "Dockerfile"), broken), tt.want)
		})
	}
}

// The linker says nothing when -X names no variable, so that the Dockerfile's own flags are tried.
func TestTheImagesBinaryIsStaticAndKnowsItsVersion(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile(`(?m)^RUN CGO_ENABLED=0 go build -trimpath -ldflags "(.*)" -o /gem \./cmd/gem$`).FindStringSubmatch(readFile(t, "Dockerfile"))
	if line == nil {
		t.Fatal("the Dockerfile builds gem in another way: change this test with it")
	}
	flags := strings.NewReplacer("${VERSION}", "v1.2.3", "${COMMIT}", "0123456789abcdef").Replace(line[1])
	binary := filepath.Join(t.TempDir(), "gem")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o", binary, "./cmd/gem")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), binary, "version").Output()
	if got, want := string(out), "gem v1.2.3 (commit 0123456789ab)\n"; err != nil || got != want {
		t.Errorf("gem version: got %q, %v, want %q", got, err, want)
	}
	if runtime.GOOS != "linux" {
		return // where binaries have another format
	}
	program, err := elf.Open(binary)
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

func TestDockerComposeTakesTheFile(t *testing.T) {
	t.Parallel()
	compose := []string{"docker-compose"}
	if _, err := exec.LookPath("docker-compose"); err != nil {
		compose = []string{"docker", "compose"}
		if exec.CommandContext(t.Context(), "docker", "compose", "version").Run() != nil {
			const missing = "neither docker-compose nor docker compose is there: install one (Debian: apt-get install docker-compose)"
			if os.Getenv("GEM_TEST_REQUIRE") != "" {
				t.Fatal(missing)
			}
			t.Skip(missing)
		}
	}
	args := slices.Concat(compose, []string{"--file", filepath.Join(root, "docker-compose.yml"), "--profile", "test", "--profile", "supabase", "config", "--quiet"})
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = bareEnvironment()
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func TestWhatIsSecretStaysOutOfTheImage(t *testing.T) {
	t.Parallel()
	ignored := strings.Fields(readFile(t, ".dockerignore"))
	for _, want := range []string{".git", ".env"} {
		if !slices.Contains(ignored, want) {
			t.Errorf(".dockerignore does not name %s", want)
		}
	}
}

// go test says nothing when -run names no test, so that the page's example is looked at.
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

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func changedAt(t *testing.T, text, old, by string) string {
	t.Helper()
	changed := strings.Replace(text, old, by, 1)
	if changed == text {
		t.Fatalf("the file has no %q: change the case", old)
	}
	return changed
}

func wantProblem(t *testing.T, got []string, want string) {
	t.Helper()
	if !slices.ContainsFunc(got, func(problem string) bool { return strings.HasPrefix(problem, want) }) {
		t.Errorf("the problems are %q, want one that begins with %q", got, want)
	}
}

// dockerProblems says what is wrong with the two files, which belong together. It sets the environment, so that tests with
// it can not be parallel.
func dockerProblems(t *testing.T, dockerfile, compose string) (problems []string) {
	t.Helper()
	wrong := func(at, format string, args ...any) {
		problems = append(problems, at+fmt.Sprintf(format, args...))
	}
	checkImageFile(dockerfile, wrong)
	checkBases(readFile(t, testDockerfile), wrong)

	var file struct{ Services map[string]map[string]any }
	if err := yaml.Unmarshal([]byte(compose), &file); err != nil {
		return append(problems, err.Error())
	}
	checkInterpolation(t, compose, wrong)
	for _, name := range slices.Sorted(maps.Keys(file.Services)) {
		service := file.Services[name]
		at := func(at, format string, args ...any) { wrong(name+": "+at, format, args...) }
		checkPorts(service, at)
		if slices.Contains(servicesOfOthers, name) {
			checkImage(service, at)
		} else {
			checkBuild(t, dockerfile, service, at)
		}
		if name != "postgres" && name != "test" {
			checkHardened(service, at)
		}
	}
	worker := file.Services["worker"]
	at := func(at, format string, args ...any) { wrong("worker: "+at, format, args...) }
	checkComposeCommands(file.Services, wrong)
	checkComposeWorker(t, worker, at)
	if condition(file.Services["migrate"], "roles") != "service_completed_successfully" {
		wrong("migrate: depends_on: ", "migrations grant rights to the roles that they find: they come after roles")
	}
	// The image of Postgres declares a volume there, and docker compose down leaves one that has no name.
	if got := file.Services["roles"]["tmpfs"]; got != "/var/lib/postgresql/data" {
		wrong("roles: tmpfs ", "is %v, want /var/lib/postgresql/data: each container of it would leave an empty volume", got)
	}
	if secret := expand(environmentOf(file.Services["postgrest"])["PGRST_JWT_SECRET"]); len(secret) < 32 {
		wrong("postgrest: PGRST_JWT_SECRET ", "has %d characters, and PostgREST wants 32", len(secret))
	}
	return problems
}

// dockerfileArgs are the arguments of a Dockerfile, with their defaults.
func dockerfileArgs(text string) map[string]string {
	args := map[string]string{}
	for _, found := range regexp.MustCompile(`(?m)^ARG (\w+)=?(.*)$`).FindAllStringSubmatch(text, -1) {
		args[found[1]] = found[2]
	}
	return args
}

// checkBases checks what a Dockerfile builds on.
func checkBases(text string, wrong report) {
	if regexp.MustCompile(`(?mi)^#\s*syntax\s*=`).MatchString(text) {
		wrong("syntax: ", "the line fetches a frontend from a registry")
	}
	args := dockerfileArgs(text)
	for _, from := range regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(text, -1) {
		if base := os.Expand(from[1], func(name string) string { return args[name] }); base == "" || base == from[1] {
			wrong("FROM "+from[1]+": ", "want an argument with a default")
		}
	}
	if strings.Contains(text, "RUN --") {
		wrong("RUN: ", "its options need BuildKit")
	}
}

// checkImageFile checks the Dockerfile of gem.
func checkImageFile(text string, wrong report) {
	checkBases(text, wrong)
	if before, _, _ := strings.Cut(text, "RUN go mod download"); strings.Contains(before, "COPY . .") || !strings.Contains(before, "COPY go.mod go.sum ./") {
		wrong("go mod download: ", "want go.mod and go.sum alone before it, so that it is repeated only when they change")
	}
	if !strings.Contains(text, "CGO_ENABLED=0 go build") {
		wrong("CGO_ENABLED: ", "the image has no C library")
	}
	_, last, _ := strings.Cut(text, "\nFROM ${RUN_IMAGE}\n")
	if user := regexp.MustCompile(`(?m)^USER ([1-9]\d*):([1-9]\d*)$`).FindString(last); user == "" {
		wrong("USER: ", "want the number of a user and a group that are not root")
	}
	if program, starts := imageCommand(text); checkCommand(program, starts, "worker") != nil || program != "/gem" {
		wrong("CMD: ", "the image starts with %q, want /gem worker, without a shell", starts)
	}
}

// checkBuild checks what a service hands to the build.
func checkBuild(t *testing.T, dockerfile string, service map[string]any, wrong report) {
	t.Helper()
	build, _ := service["build"].(map[string]any)
	if file, set := build["dockerfile"]; set && file != testDockerfile {
		wrong("build: dockerfile ", "is %v, want %s", file, testDockerfile)
	} else if set {
		dockerfile = readFile(t, testDockerfile)
	}
	has := dockerfileArgs(dockerfile)
	args, _ := build["args"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(args)) {
		value, known := has[name]
		if want := expand(args[name]); !known {
			wrong("build: "+name+" ", "is no argument of the Dockerfile")
		} else if value != want {
			wrong("build: "+name+" ", "is %q by default, and in the Dockerfile %q", want, value)
		}
	}
}

func checkImage(service map[string]any, wrong report) {
	image := fmt.Sprint(service["image"])
	if expand(image) == image {
		wrong("image: ", "%s can not be replaced: want ${NAME_IMAGE:-%s}", image, image)
	}
	if strings.HasPrefix(expand(image), "postgres:") && expand(image) != "postgres:17" {
		wrong("image: ", "%s, want postgres:17", expand(image))
	}
}

func checkPorts(service map[string]any, wrong report) {
	ports, _ := service["ports"].([]any)
	for _, port := range ports {
		if !strings.HasPrefix(fmt.Sprint(port), "127.0.0.1:") {
			wrong("ports: ", "%v is open to the network: want 127.0.0.1", port)
		}
	}
}

func checkHardened(service map[string]any, wrong report) {
	if service["read_only"] != true {
		wrong("read_only ", "is not true")
	}
	if fmt.Sprint(service["cap_drop"]) != "[ALL]" {
		wrong("cap_drop ", "is %v, want [ALL]", service["cap_drop"])
	}
	if fmt.Sprint(service["security_opt"]) != "[no-new-privileges:true]" {
		wrong("security_opt ", "is %v, want [no-new-privileges:true]", service["security_opt"])
	}
}

// checkInterpolation checks the variables that the file takes from the shell: each has a default, and is explained.
func checkInterpolation(t *testing.T, compose string, wrong report) {
	t.Helper()
	explained := readFile(t, "docs/docker.md")
	for _, found := range regexp.MustCompile(`\$\{(\w+)([^}]*)\}`).FindAllStringSubmatch(compose, -1) {
		if !strings.HasPrefix(found[2], ":-") {
			wrong(found[1]+" ", "has no default: want ${%s:-…}", found[1])
		}
		if !strings.Contains(explained, "`"+found[1]+"`") {
			wrong(found[1]+" ", "is not explained in docs/docker.md")
		}
	}
}

// checkComposeCommands checks the words that gem is run with.
func checkComposeCommands(services map[string]map[string]any, wrong report) {
	const program = "/gem"
	for _, name := range []string{"migrate", "worker"} {
		if err := checkCommand(program, append([]string{program}, list(services[name]["command"])...), name); err != nil {
			wrong(name+": command: ", "%v", err)
		}
	}
	check, _ := services["worker"]["healthcheck"].(map[string]any)
	words := list(check["test"])
	if len(words) == 0 || words[0] != "CMD" {
		wrong("worker: healthcheck: ", "is %q, want a CMD: there is no shell", words)
		return
	}
	if err := checkCommand(program, words[1:], "healthcheck"); err != nil {
		wrong("worker: healthcheck: ", "%v", err)
	}
	if timeout, err := time.ParseDuration(fmt.Sprint(check["timeout"])); err != nil || timeout <= healthDeadline {
		wrong("worker: healthcheck: ", "the timeout is %v, and gem healthcheck may take %s to say what is wrong", check["timeout"], healthDeadline)
	}
	// Whoever runs once must not be started again, and the worker must be.
	for name, want := range map[string]any{"migrate": nil, "roles": nil, "worker": "unless-stopped", "postgres": "unless-stopped"} {
		if got := services[name]["restart"]; got != want {
			wrong(name+": restart ", "is %v, want %v", got, want)
		}
	}
}

func checkComposeWorker(t *testing.T, worker map[string]any, wrong report) {
	t.Helper()
	if n, _ := worker["scale"].(int); n < 2 {
		wrong("scale ", "is %v, want 2 or more, so that one can be lost", worker["scale"])
	}
	// docker compose up --wait takes a container that has ended for a failure, unless another waited for its end.
	if condition(worker, "migrate") != "service_completed_successfully" {
		wrong("depends_on: ", "workers come after the migrations")
	}
	has := environmentOf(worker)
	known := map[string]config.Variable{}
	for _, v := range config.Describe() {
		known[v.Name] = v
		t.Setenv(v.Name, expand(has[v.Name]))
		reason, left := notPassed[v.Name]
		if _, set := has[v.Name]; set && left {
			wrong(v.Name+" ", "must not be set: %s", reason)
		} else if !set && !left {
			wrong(v.Name+" ", "is not passed on")
		}
		// The database's is made of a password that the shell may set.
		if v.Secret && v.Name != "DATABASE_URL" && has[v.Name] != nil {
			wrong(v.Name+" ", "is a secret, and has a value")
		}
	}
	for name := range has {
		if _, ours := known[name]; !ours && !slices.Contains(goVariables, name) && !strings.HasPrefix(name, "OTEL_") {
			wrong(name+" ", "is not read by gem")
		}
	}
	cfg, err := config.Load()
	if err != nil {
		wrong("", "%v", err)
		return
	}
	if stop, err := time.ParseDuration(fmt.Sprint(worker["stop_grace_period"])); err != nil || stop < cfg.ShutdownGrace+afterGrace {
		wrong("stop_grace_period ", "is %v: a worker needs WORKER_SHUTDOWN_GRACE, %s, and up to %s more", worker["stop_grace_period"], cfg.ShutdownGrace, afterGrace)
	}
	tools, err := registry.Parse(gem.BuiltInRegistry)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools.Tools() {
		if tool.Timeout > cfg.ShutdownGrace && !slices.Contains(mayBeCutOff, tool.Name) {
			wrong("WORKER_SHUTDOWN_GRACE ", "is %s, and %s may take %s", cfg.ShutdownGrace, tool.Name, tool.Timeout)
		}
	}
}

// condition is what a service waits for of another.
func condition(service map[string]any, other string) any {
	all, _ := service["depends_on"].(map[string]any)
	one, _ := all[other].(map[string]any)
	return one["condition"]
}

func environmentOf(service map[string]any) map[string]any {
	env, _ := service["environment"].(map[string]any)
	return env
}

// list is a list of words.
func list(v any) (words []string) {
	all, _ := v.([]any)
	for _, word := range all {
		words = append(words, fmt.Sprint(word))
	}
	return words
}

// expand gives what a value is when the shell sets nothing.
func expand(v any) string {
	if v == nil {
		return ""
	}
	return os.Expand(fmt.Sprint(v), func(name string) string {
		_, value, _ := strings.Cut(name, ":-")
		return value
	})
}
