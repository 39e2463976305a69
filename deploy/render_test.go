package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/internal/config"
	"github.com/gemworker/gem/registry"
	"go.yaml.in/yaml/v3"
)

// root is the folder of render.yaml.
const root = "../.."

const (
	// workersOwnConnections come on top of WORKER_CONNECTIONS: see docs/configuration.md.
	workersOwnConnections = 3
	// poolSize is what Supabase's poolers have by default on the smallest computes.
	poolSize = 15
	// afterGrace is how long a worker may need after its grace time: see docs/configuration.md.
	afterGrace = 13 * time.Second
	// maxShutdownDelay and defaultShutdownDelay are Render's, in seconds.
	maxShutdownDelay, defaultShutdownDelay = 300, 30
)

// workerFields are those that a worker from a Dockerfile may have, as https://render.com/docs/blueprint-spec and
// https://render.com/schema/render.yaml.json had them in November 2026. Left out are the deprecated ones (env, autoDeploy,
// pullRequestPreviewsEnabled), those of other types and runtimes (healthCheckPath, domains, buildCommand, image, …), and disk:
// a worker keeps nothing on one, and a service that has one is not deployed side by side with its predecessor.
var workerFields = []string{
	"type", "name", "runtime", "plan", "region", "repo", "branch", "rootDir", "dockerfilePath", "dockerContext", "dockerCommand",
	"registryCredential", "preDeployCommand", "autoDeployTrigger", "numInstances", "scaling", "maxShutdownDelaySeconds",
	"envVars", "buildFilter", "previews",
}

// mayBeCutOff names tools that take longer than the grace time: none of those that come with GEM. A deploy may end a call of
// theirs, which is then handed over or, when it may not run twice, ends as outcome_unknown.
var mayBeCutOff = []string{}

// goVariables are read by Go's runtime, not by GEM.
var goVariables = []string{"GOMEMLIMIT", "GOGC"}

func TestRenderYAMLFitsTheProgram(t *testing.T) {
	for _, problem := range renderProblems(t, readFile(t, "render.yaml")) {
		t.Error(problem)
	}
}

// Each rule is seen to fail: every case breaks the file in one place.
func TestWhatIsWrongWithARenderYAML(t *testing.T) {
	for _, tt := range []struct {
		name     string
		old, new string // the first old becomes new
		want     string // begins the one problem that is found
	}{
		{"not YAML", "services:", "services: [", "yaml:"},
		{"a field twice", "plan: starter", "plan: starter\n    plan: standard", "yaml:"},
		{"an unknown field at the top", "services:", "servers: []\nservices:", "servers: "},
		{"an unknown field", "plan: starter", "instanceType: starter", "instanceType: "},
		{"a deprecated field", "autoDeployTrigger: commit", "autoDeploy: true", "autoDeploy: "},
		{"a field of web services", "plan: starter", "healthCheckPath: /", "healthCheckPath: "},
		{"a web service", "type: worker", "type: web", "type: "},
		{"another runtime", "runtime: docker", "runtime: go", "runtime: "},
		{"no name", "name: gem-worker", "name: ''", "name: "},
		{"a plan without workers", "plan: starter", "plan: free", "plan: "},
		{"an unknown trigger", "autoDeployTrigger: commit", "autoDeployTrigger: push", "autoDeployTrigger: "},
		{"no Dockerfile", "./Dockerfile", "./docker/Dockerfile", "dockerfilePath: "},
		{"no such program", "/gem migrate", "/app/gem migrate", "preDeployCommand: "},
		{"no such command", "/gem migrate", "/gem migrations", "preDeployCommand: "},
		{"an argument too many", "/gem migrate", "/gem migrate up", "preDeployCommand: "},
		{"an unknown flag", "/gem migrate", "/gem migrate --all", "preDeployCommand: "},
		{"a shell's syntax", "/gem migrate", "/gem migrate && true", "preDeployCommand: "},
		{"no migrations", "preDeployCommand: /gem migrate", "", "preDeployCommand: "},
		{"another command", "plan: starter", "dockerCommand: /gem wroker", "dockerCommand: "},
		{"no database", "key: DATABASE_URL", "key: TOOLS_REGISTRY", "DATABASE_URL: "},
		{"an unknown variable", "key: LOG_FORMAT", "key: LOG_FORMATS", "LOG_FORMATS: "},
		{"a variable twice", "key: DIRECT_URL", "key: DATABASE_URL", "DATABASE_URL: "},
		{"a secret with a value", "sync: false", "value: postgres://u:p@h/d", "DATABASE_URL: "},
		{"a secret with a value beside", "sync: false", "sync: false\n        value: postgres://u:p@h/d", "DATABASE_URL: "},
		{"a secret that is generated", "sync: false", "generateValue: true", "DATABASE_URL: "},
		{"a secret that is synced", "sync: false", "sync: true", "DATABASE_URL: "},
		{"a secret of a tool with a value", "key: LOG_FORMAT", "key: SMTP_PASSWORD", "SMTP_PASSWORD: "},
		{"a variable without a value", "\n        value: json", "", "LOG_FORMAT: "},
		{"an unknown form", "value: json", "values: json", "LOG_FORMAT: "},
		{"a value that is not text", `"10"`, "10", "WORKER_CONCURRENCY: "},
		{"a value that is refused", "value: json", "value: xml", "LOG_FORMAT: "},
		{"a grace time that is refused", "value: 45s", "value: 45 seconds", "WORKER_SHUTDOWN_GRACE: "},
		{"a secret header", "key: LOG_FORMAT", "key: OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS: "},
		{"no time to stop", "maxShutdownDelaySeconds: 60", "maxShutdownDelaySeconds: 50", "maxShutdownDelaySeconds: "},
		{"the default time to stop", "maxShutdownDelaySeconds: 60", "", "maxShutdownDelaySeconds: "},
		{"more time than Render gives", "maxShutdownDelaySeconds: 60", "maxShutdownDelaySeconds: 301", "maxShutdownDelaySeconds: "},
		{"time in words", "maxShutdownDelaySeconds: 60", "maxShutdownDelaySeconds: 60s", "maxShutdownDelaySeconds: "},
		{"tools that take longer", "value: 45s", "value: 29s", "WORKER_SHUTDOWN_GRACE: "},
		{"too many connections", `"4"`, `"5"`, "WORKER_CONNECTIONS: "},
		{"as many connections as calls", `"4"`, `"0"`, "WORKER_CONNECTIONS: "},
		{"too many instances", "numInstances: 1", "numInstances: 2", "WORKER_CONNECTIONS: "},
		{"too many instances at most", "numInstances: 1", "scaling: {minInstances: 1, maxInstances: 3}", "WORKER_CONNECTIONS: "},
		{"no instances", "numInstances: 1", "numInstances: 0", "numInstances: "},
		{"two services", "services:\n", "services:\n  - {type: worker}\n", "services: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := renderProblems(t, changedAt(t, readFile(t, "render.yaml"), tt.old, tt.new))
			if len(got) != 1 || !strings.HasPrefix(got[0], tt.want) {
				t.Errorf("the problems are %q, want one that begins with %q", got, tt.want)
			}
		})
	}
}

func TestWhatElseARenderYAMLMayHave(t *testing.T) {
	for _, tt := range []struct{ name, old, new string }{
		{"a variable of Go", "envVars:\n", "envVars:\n      - {key: GOMEMLIMIT, value: 400MiB}\n"},
		{"a collector, with its secret headers", "envVars:\n", "envVars:\n" +
			"      - {key: OTEL_EXPORTER_OTLP_ENDPOINT, value: 'https://otel.example'}\n" +
			"      - {key: OTEL_EXPORTER_OTLP_HEADERS, sync: false}\n"},
		{"a group", "envVars:\n", "envVars:\n      - {fromGroup: mail}\n"},
		{"a prompt for what is no secret", "envVars:\n", "envVars:\n      - {key: HTTP_ALLOWED_HOSTS, sync: false}\n"},
		{"fewer connections", `"4"`, `"1"`},
		{"an instance that may be scaled", "numInstances: 1", "scaling: {minInstances: 1, maxInstances: 1}"},
		{"the longest delay", "maxShutdownDelaySeconds: 60", "maxShutdownDelaySeconds: 300"},
		{"the image's command, with a flag", "plan: starter", "plan: starter\n    dockerCommand: /gem worker --patience 2m"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := renderProblems(t, changedAt(t, readFile(t, "render.yaml"), tt.old, tt.new)); len(got) > 0 {
				t.Errorf("the problems are %q, want none", got)
			}
		})
	}
}

// renderProblems says what is wrong with a render.yaml, each beginning with the field or the variable. It sets the
// environment, so that tests with it can not be parallel.
func renderProblems(t *testing.T, text string) (problems []string) {
	t.Helper()
	var blueprint map[string]any
	if err := yaml.Unmarshal([]byte(text), &blueprint); err != nil {
		return []string{err.Error()}
	}
	wrong := func(at, format string, args ...any) {
		problems = append(problems, at+": "+fmt.Sprintf(format, args...))
	}
	for field := range blueprint {
		if field != "services" {
			wrong(field, "only services are expected at the top")
		}
	}
	services, _ := blueprint["services"].([]any)
	if len(services) != 1 {
		wrong("services", "there are %d, want the one worker", len(services))
		return problems
	}
	worker, _ := services[0].(map[string]any)
	checkWorker(worker, wrong)
	cfg := checkVariables(t, worker, wrong)
	if cfg != nil {
		checkTimes(t, worker, cfg, wrong)
		checkConnections(worker, cfg, wrong)
	}
	return problems
}

// report notes a problem.
type report func(at, format string, args ...any)

func checkWorker(worker map[string]any, wrong report) {
	for _, field := range slices.Sorted(maps.Keys(worker)) {
		if !slices.Contains(workerFields, field) {
			wrong(field, "not a field of a worker from a Dockerfile")
		}
	}
	if worker["type"] != "worker" {
		wrong("type", "is %v, want worker: GEM listens on no port", worker["type"])
	}
	if worker["runtime"] != "docker" {
		wrong("runtime", "is %v, want docker", worker["runtime"])
	}
	if name, _ := worker["name"].(string); name == "" {
		wrong("name", "is missing")
	}
	if worker["plan"] == "free" {
		wrong("plan", "workers have no free one")
	}
	if trigger, set := worker["autoDeployTrigger"]; set && !slices.Contains([]any{"commit", "checksPass", "off"}, trigger) {
		wrong("autoDeployTrigger", "is %v, want commit, checksPass or off", trigger)
	}
	checkCommands(worker, wrong)
}

// checkCommands checks the commands as Render runs them: in place of the image's own, and without a shell, which the image
// does not have.
func checkCommands(worker map[string]any, wrong report) {
	file, _ := worker["dockerfilePath"].(string)
	dockerfile, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		wrong("dockerfilePath", "%v", err)
		return
	}
	program, starts := imageCommand(string(dockerfile))
	if command, set := worker["dockerCommand"]; set {
		starts = strings.Fields(fmt.Sprint(command))
	}
	if err := checkCommand(program, starts, "worker"); err != nil {
		wrong("dockerCommand", "%v", err)
	}
	before, _ := worker["preDeployCommand"].(string)
	if err := checkCommand(program, strings.Fields(before), "migrate"); err != nil {
		wrong("preDeployCommand", "%v", err)
	}
}

// imageCommand returns the program of an image, and the words that its containers start with.
func imageCommand(dockerfile string) (program string, starts []string) {
	var entrypoint, cmd []string
	for line := range strings.Lines(dockerfile) {
		// In exec form alone: the other one needs a shell.
		if list, ok := strings.CutPrefix(line, "ENTRYPOINT "); ok && json.Unmarshal([]byte(list), &entrypoint) != nil {
			entrypoint = nil
		}
		if list, ok := strings.CutPrefix(line, "CMD "); ok && json.Unmarshal([]byte(list), &cmd) != nil {
			cmd = nil
		}
	}
	if starts = slices.Concat(entrypoint, cmd); len(starts) > 0 {
		program = starts[0]
	}
	return program, starts
}

// checkCommand reports whether words run that command of gem, with arguments and flags that it takes.
func checkCommand(program string, words []string, want string) error {
	if len(words) == 0 {
		return fmt.Errorf("is missing, want %s %s", program, want)
	}
	if words[0] != program {
		return fmt.Errorf("runs %s, and the image has %s", words[0], program)
	}
	command, args, err := rootCommand().Find(words[1:])
	if err != nil {
		return err
	}
	if command.Name() != want {
		return fmt.Errorf("%q runs gem %s, want gem %s", strings.Join(words, " "), command.Name(), want)
	}
	if err := command.ParseFlags(args); err != nil {
		return err
	}
	return command.ValidateArgs(command.Flags().Args())
}

// checkVariables returns the configuration that a worker with these variables has, or nil when there is none.
func checkVariables(t *testing.T, worker map[string]any, wrong report) *config.Config {
	t.Helper()
	known := map[string]config.Variable{}
	for _, v := range config.Describe() {
		known[v.Name] = v
		t.Setenv(v.Name, "")
	}
	seen := map[string]bool{}
	entries, _ := worker["envVars"].([]any)
	for _, entry := range entries {
		entry, _ := entry.(map[string]any)
		if _, group := entry["fromGroup"]; group && len(entry) == 1 {
			continue
		}
		name := fmt.Sprint(entry["key"])
		variable, ours := known[name]
		switch {
		case seen[name]:
			wrong(name, "is there twice")
			continue
		case !ours && !slices.Contains(goVariables, name) && !strings.HasPrefix(name, "OTEL_"):
			wrong(name, "gem does not read it")
			continue
		}
		seen[name] = true
		prompted := len(entry) == 2 && entry["sync"] == false
		// An exporter's headers carry the key of whoever collects.
		if secret := variable.Secret || strings.HasSuffix(name, "_HEADERS"); secret && !prompted {
			wrong(name, "is a secret: want `sync: false` and nothing else")
			continue
		}
		value, text := entry["value"].(string)
		switch {
		case prompted:
		case !text || len(entry) != 2:
			wrong(name, "want a value, as text, or `sync: false`, and nothing else")
		case ours:
			t.Setenv(name, value)
		}
	}
	if !seen["DATABASE_URL"] {
		wrong("DATABASE_URL", "is missing")
	}
	cfg, err := config.Load()
	if err != nil {
		name, reason, _ := strings.Cut(err.Error(), " ")
		wrong(name, "%s", reason)
		return nil
	}
	return cfg
}

// checkTimes checks that the longest call ends within the grace time, and a worker before it is killed.
func checkTimes(t *testing.T, worker map[string]any, cfg *config.Config, wrong report) {
	t.Helper()
	const field = "maxShutdownDelaySeconds"
	delay, set := worker[field]
	if !set {
		delay = defaultShutdownDelay
	}
	switch seconds, ok := delay.(int); {
	case !ok || seconds < 1 || seconds > maxShutdownDelay:
		wrong(field, "is %v, want a number from 1 to %d", delay, maxShutdownDelay)
	case time.Duration(seconds)*time.Second < cfg.ShutdownGrace+afterGrace:
		wrong(field, "is %d: a worker needs WORKER_SHUTDOWN_GRACE, %s, and up to %s more", seconds, cfg.ShutdownGrace, afterGrace)
	}
	tools, err := registry.Parse(gem.BuiltInRegistry)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools.Tools() {
		if tool.Timeout > cfg.ShutdownGrace && !slices.Contains(mayBeCutOff, tool.Name) {
			wrong("WORKER_SHUTDOWN_GRACE", "is %s, and %s may take %s", cfg.ShutdownGrace, tool.Name, tool.Timeout)
			return
		}
	}
}

// checkConnections checks that the old and the new workers of a deploy fit into one pool.
func checkConnections(worker map[string]any, cfg *config.Config, wrong report) {
	instances, field := any(1), "numInstances"
	if n, set := worker[field]; set {
		instances = n
	}
	if scaling, set := worker["scaling"].(map[string]any); set {
		field = "scaling"
		instances = scaling["maxInstances"]
	}
	n, ok := instances.(int)
	if !ok || n < 1 {
		wrong(field, "%v instances, want a number from 1", instances)
		return
	}
	if needs := 2 * n * (cfg.CallConnections() + workersOwnConnections); needs > poolSize {
		wrong("WORKER_CONNECTIONS", "is %d: in a deploy, 2 × %d instances take %d connections, and the pool has %d",
			cfg.CallConnections(), n, needs, poolSize)
	}
}
