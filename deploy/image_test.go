package deploy_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// published is the image of a release, without its tag.
const published = "ghcr.io/gemworker/gem"

// ownSecret is a variable that the examples name for the reader's own service: gem knows it only from domains.json.
const ownSecret = "CRM_SECRET"

// The compose file of docs/docker.md runs the published image in the folder of the reader's files, as restricted as
// the repository's.
func TestTheComposeExampleRunsThePublishedImage(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]struct {
			service    `yaml:",inline"`
			WorkingDir string `yaml:"working_dir"`
			Volumes    []string
		}
	}
	if err := yaml.Unmarshal([]byte(readFile(t, "docs/examples/image/docker-compose.yml")), &file); err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string]string{"gem": "migrate", "worker": "worker"} {
		s := file.Services[name]
		wantCommand(t, name, append([]string{"/gem"}, s.Command...), command)
		if image, _, _ := strings.Cut(unset(s.Image), ":"); image != published ||
			!strings.Contains(readFile(t, ".goreleaser.yaml"), "["+image+"]") {
			t.Errorf("%s: the image is %s, want %s, which .goreleaser.yaml publishes", name, s.Image, published)
		}
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) ||
			!slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) {
			t.Errorf("%s: want read_only, cap_drop ALL and no-new-privileges", name)
		}
		if s.WorkingDir != "/files" || !slices.Equal(s.Volumes, []string{"./files:/files:ro"}) {
			t.Errorf("%s works in %s, with %v", name, s.WorkingDir, s.Volumes)
		}
	}
	worker, env := file.Services["worker"], map[string]string{}
	for name, value := range worker.Environment {
		if env[name] = ""; value != nil {
			env[name] = unset(*value)
		}
	}
	delete(env, ownSecret)
	stop, err := time.ParseDuration(worker.StopGracePeriod)
	if err != nil {
		t.Fatal(err)
	}
	checkWorker(t, env, stop)
	wantCommand(t, "worker: healthcheck", worker.Healthcheck.Test[1:], "healthcheck")
	for _, port := range file.Services["postgres"].Ports {
		if !strings.HasPrefix(port, "127.0.0.1:") {
			t.Errorf("the port %s is open to the network", port)
		}
	}
}

// The Blueprint of docs/render.md runs the published image.
func TestTheRenderExampleRunsThePublishedImage(t *testing.T) {
	t.Parallel()
	var file struct {
		Services []struct {
			renderService `yaml:",inline"`
			Image         struct{ URL string }
		}
	}
	if err := yaml.Unmarshal([]byte(readFile(t, "docs/examples/image/render.yaml")), &file); err != nil ||
		len(file.Services) != 1 {
		t.Fatalf("%d services, %v", len(file.Services), err)
	}
	w := file.Services[0]
	if image, version, _ := strings.Cut(w.Image.URL, ":"); w.Type != "worker" || w.Runtime != "image" ||
		image != published || !strings.HasPrefix(version, "v") {
		t.Errorf("%s, %s, %s: want a worker of a version of %s", w.Type, w.Runtime, w.Image.URL, published)
	}
	wantCommand(t, "preDeployCommand", strings.Fields(w.PreDeployCommand), "migrate")
	env := renderEnvironment(t, w.renderService)
	delete(env, ownSecret)
	for _, name := range []string{"TOOLS_REGISTRY", "GEM_DOMAINS"} { // files on Render
		if !strings.HasPrefix(env[name], "/etc/secrets/") {
			t.Errorf("%s is %q", name, env[name])
		}
		env[name] = ""
	}
	checkWorker(t, env, time.Duration(w.MaxShutdownDelaySeconds)*time.Second)
	checkConnections(t, w.renderService, env)
}
