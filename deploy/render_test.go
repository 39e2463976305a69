package deploy_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// cronFields are the fields that a cron job from a Dockerfile may have, from the same sources.
var cronFields = []string{
	"type", "name", "runtime", "plan", "region", "repo", "branch", "rootDir", "dockerfilePath", "dockerContext",
	"dockerCommand",
	"registryCredential", "schedule", "autoDeployTrigger", "envVars", "buildFilter",
}

// workerFields are the fields that a worker from a Dockerfile may have, by https://render.com/docs/blueprint-spec and
// https://render.com/schema/render.yaml.json in November 2026. Deprecated fields are left out (env, autoDeploy,
// pullRequestPreviewsEnabled), and fields of other types and runtimes (healthCheckPath, domains, buildCommand, image,
// …), and disk: a worker stores nothing on one, and a deploy cannot run a service with a disk next to its
// predecessor.
var workerFields = []string{
	"type", "name", "runtime", "plan", "region", "repo", "branch", "rootDir", "dockerfilePath", "dockerContext",
	"dockerCommand",
	"registryCredential", "preDeployCommand", "autoDeployTrigger", "numInstances", "scaling", "maxShutdownDelaySeconds",
	"envVars", "buildFilter", "previews",
}

// renderService is the part of a service of render.yaml that these tests check.
type renderService struct {
	Type, Name, Runtime, Plan string
	Region, Schedule          string
	DockerfilePath            string `yaml:"dockerfilePath"`
	DockerCommand             string `yaml:"dockerCommand"`
	PreDeployCommand          string `yaml:"preDeployCommand"`
	AutoDeployTrigger         string `yaml:"autoDeployTrigger"`
	NumInstances              *int   `yaml:"numInstances"`
	Scaling                   *struct {
		Max int `yaml:"maxInstances"`
	}
	MaxShutdownDelaySeconds int `yaml:"maxShutdownDelaySeconds"`
	EnvVars                 []struct {
		Key       string
		FromGroup string `yaml:"fromGroup"`
		Value     yaml.Node
		Sync      *bool
	} `yaml:"envVars"`
}

func TestRenderYAMLFitsTheProgram(t *testing.T) {
	t.Parallel()
	text := []byte(readFile(t, "render.yaml"))
	var fields struct{ Services []map[string]any }
	var file struct{ Services []renderService }
	if err := yaml.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Services) != 2 {
		t.Fatalf("%d services, want the worker and the cron job", len(file.Services))
	}
	for i, may := range [][]string{workerFields, cronFields} {
		for field := range fields.Services[i] {
			if !slices.Contains(may, field) {
				t.Errorf("%s is not a field of a %s from a Dockerfile", field, file.Services[i].Type)
			}
		}
	}
	w := file.Services[0]
	checkPruning(t, file.Services[1], w)
	if w.Type != "worker" || w.Runtime != "docker" || w.Name == "" || w.Plan == "free" {
		t.Errorf("type %q, runtime %q, name %q, plan %q: want a worker, docker, a name, and a plan that has workers",
			w.Type, w.Runtime, w.Name, w.Plan)
	}
	if !slices.Contains([]string{"", "commit", "checksPass", "off"}, w.AutoDeployTrigger) {
		t.Errorf("autoDeployTrigger is %q, want commit, checksPass or off", w.AutoDeployTrigger)
	}

	// Render runs the commands instead of the image's own, and without a shell, which the image does not have.
	if w.DockerfilePath != "./Dockerfile" {
		t.Errorf("dockerfilePath is %q", w.DockerfilePath)
	}
	wantCommand(t, "preDeployCommand", strings.Fields(w.PreDeployCommand), "migrate")
	if w.DockerCommand != "" {
		wantCommand(t, "dockerCommand", strings.Fields(w.DockerCommand), "worker")
	}

	env := renderEnvironment(t, w)
	const byDefault, most = 30, 300 // Render's, in seconds
	delay := w.MaxShutdownDelaySeconds
	if delay == 0 {
		delay = byDefault
	}
	if delay < 1 || delay > most {
		t.Errorf("maxShutdownDelaySeconds is %d, want a number from 1 to %d", delay, most)
	}
	checkWorker(t, env, time.Duration(delay)*time.Second)
	checkConnections(t, w, env)
}

// checkPruning checks the job that prunes.
func checkPruning(t *testing.T, job, w renderService) {
	t.Helper()
	if job.Type != "cron" || job.Runtime != "docker" || job.Name == "" || job.Plan == "free" ||
		job.DockerfilePath != w.DockerfilePath || job.Region != w.Region {
		t.Errorf("the second service is %+v, want a cron job with the worker's image and region", job)
	}
	if len(strings.Fields(job.Schedule)) != 5 {
		t.Errorf("the schedule is %q", job.Schedule)
	}
	command := strings.Fields(job.DockerCommand)
	wantCommand(t, "the cron job", command, "prune")
	if slices.Contains(command, "--no-archive") || slices.Contains(command, "--archive") {
		t.Error("leave the archive to GEM_ARCHIVE: a cron job has no disk, and the bucket is the user's")
	}
	env := renderEnvironment(t, job)
	for _, name := range []string{"GEM_ARCHIVE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION",
		"AWS_ENDPOINT_URL_S3"} {
		if value, asked := env[name]; !asked || value != "" {
			t.Errorf("%s: want `sync: false`", name)
		}
	}
}

// renderEnvironment returns the variables. Render asks for the secret ones.
func renderEnvironment(t *testing.T, w renderService) map[string]string {
	t.Helper()
	env := map[string]string{}
	for _, v := range w.EnvVars {
		if v.FromGroup != "" {
			continue
		}
		if _, twice := env[v.Key]; twice {
			t.Errorf("%s is there twice", v.Key)
		}
		env[v.Key] = ""
		switch asked := v.Sync != nil && !*v.Sync; {
		case asked && v.Value.Kind != 0 || !asked && secret.MatchString(v.Key):
			t.Errorf("%s: want `sync: false` and nothing else for a secret", v.Key)
		case !asked && (v.Value.Kind == 0 || v.Value.Tag != "!!str"):
			t.Errorf("%s: want a value, as text, or `sync: false`", v.Key)
		case !asked:
			env[v.Key] = v.Value.Value
		}
	}
	if _, set := env["DATABASE_URL"]; !set {
		t.Error("DATABASE_URL is missing")
	}
	return env
}

// checkConnections checks that the old and the new workers of a deploy fit into one pool, together with gem prune.
func checkConnections(t *testing.T, w renderService, env map[string]string) {
	t.Helper()
	const (
		prune    = 1  // what gem prune needs, which may run during a deploy
		own      = 3  // a worker's connections on top of WORKER_CONNECTIONS: see docs/configuration.md
		poolSize = 15 // what Supabase's poolers have by default on the smallest computes
	)
	instances := 1
	if w.NumInstances != nil {
		instances = *w.NumInstances
	}
	if w.Scaling != nil {
		instances = w.Scaling.Max
	}
	connections, err := strconv.Atoi(env["WORKER_CONNECTIONS"])
	if err != nil || connections < 1 || instances < 1 {
		t.Fatalf("%d instances with WORKER_CONNECTIONS=%q (%v), want 1 or more of each", instances, env["WORKER_CONNECTIONS"],
			err)
	}
	if needs := 2*instances*(connections+own) + prune; needs > poolSize {
		t.Errorf("WORKER_CONNECTIONS is %d: in a deploy, 2 × %d instances and gem prune take %d connections, and the pool "+
			"has %d",
			connections, instances, needs, poolSize)
	}
}
