package deploy_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestAReleaseIsBuiltLikeTheImage(t *testing.T) {
	t.Parallel()
	var release struct {
		Builds []struct {
			Main, Binary, Ldflags string
			Env, Flags            []string
			Goos, Goarch          []string
		}
		Dockers []struct {
			Dockerfile string
			Platforms  []string
		} `yaml:"dockers_v2"`
	}
	if err := yaml.Unmarshal([]byte(readFile(t, ".goreleaser.yaml")), &release); err != nil {
		t.Fatal(err)
	}
	if len(release.Builds) != 1 || len(release.Dockers) != 1 {
		t.Fatalf("%d builds and %d images, want one of each", len(release.Builds), len(release.Dockers))
	}
	b, image := release.Builds[0], release.Dockers[0]
	built := strings.NewReplacer("v{{ .Version }}", "${VERSION}", "{{ .FullCommit }}", "${COMMIT}").Replace(
		strings.Join(b.Env, " ") + " go build " + strings.Join(b.Flags, " ") + ` -ldflags "` + b.Ldflags + `" -o /` +
			b.Binary + " " + b.Main)
	if !strings.Contains(readFile(t, "Dockerfile"), "\nRUN "+built+"\n") {
		t.Errorf("the Dockerfile does not build this way: %s", built)
	}
	if !slices.Equal(b.Goos, []string{"linux", "darwin"}) || !slices.Equal(b.Goarch, []string{"amd64", "arm64"}) {
		t.Errorf("binaries for %s on %s", b.Goos, b.Goarch)
	}
	if !slices.Equal(image.Platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("images for %s", image.Platforms)
	}

	// The two differ only in the source of the binary.
	last := func(name string) string {
		text := readFile(t, name)
		text = text[strings.LastIndex(text, "\nFROM ")+1:]
		return regexp.MustCompile(`(?m)^(#|ARG|COPY).*\n`).ReplaceAllString(text, "")
	}
	if a, b := last(image.Dockerfile), last("Dockerfile"); a != b {
		t.Errorf("%s ends in\n%s\nand the Dockerfile in\n%s", image.Dockerfile, a, b)
	}
	wantBases(t, readFile(t, image.Dockerfile))
	if a, b := dockerfileArgs(readFile(t, image.Dockerfile))["RUN_IMAGE"],
		dockerfileArgs(readFile(t, "Dockerfile"))["RUN_IMAGE"]; a != b {
		t.Errorf("%s begins with %s, and the Dockerfile with %s", image.Dockerfile, a, b)
	}
}

// The same version checks and builds a release.
func TestGoreleaserHasOneVersion(t *testing.T) {
	t.Parallel()
	_, version, _ := strings.Cut(readFile(t, ".ci/run"), "\nreleaser=")
	version, _, _ = strings.Cut(version, "\n")
	for _, name := range []string{"ci.yml", "release.yml"} {
		text := readFile(t, filepath.Join(".github/workflows", name))
		if version == "" || !regexp.MustCompile(`goreleaser-action@\S+\n        with:\n(.*\n)?          version: `+version+
			"\n").MatchString(text) {
			t.Errorf("%s: want goreleaser %s, as in .ci/run", name, version)
		}
	}
}

// The pages begin with the instructions that work from the repository, and mark what a release will publish.
func TestThePagesMarkWhatComesWithTheFirstRelease(t *testing.T) {
	t.Parallel()
	released := strings.Contains(readFile(t, "CHANGELOG.md"), "\n## v0.1.0")
	for page, order := range map[string][2]string{
		"docs/docker.md":  {"docker compose up --build --wait", "## The published image"},
		"docs/render.md":  {"### From a fork", "### From the published image"},
		"docs/clients.md": {"cp -R path/to/gem/clients/js", "@gemworker/client"},
	} {
		text := readFile(t, page)
		today, later := strings.Index(text, order[0]), strings.Index(text, order[1])
		if today < 0 || later < today {
			t.Errorf("%s: want %q before %q", page, order[0], order[1])
		}
		if marked := strings.Contains(text, "comes with v0.1.0"); marked == released {
			t.Errorf("%s announces what comes with v0.1.0: %v. v0.1.0 is released: %v", page, marked, released)
		}
	}
}
