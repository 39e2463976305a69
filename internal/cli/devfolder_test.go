package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestDevWritesThroughNoLink(t *testing.T) {
	for _, name := range []string{devFile, devFolder + "/.gitignore", devFolder + "/rules.schema.json"} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			precious := filepath.Join(t.TempDir(), "precious.json")
			const text = `{"mine": 1}`
			if err := os.WriteFile(precious, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(devFolder, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(precious, name); err != nil {
				t.Skip(err)
			}
			if s, err := openDevState(false); err == nil || !strings.Contains(err.Error(), name+" is a link") {
				if err == nil {
					s.close()
				}
				t.Errorf("it was opened, or the error does not name the link: %v", err)
			}
			if now, err := os.ReadFile(precious); err != nil || string(now) != text {
				t.Errorf("the file behind the link has %q, %v", now, err)
			}
			if url := runningDev(); name == devFile && url != "" {
				t.Errorf("a command would use %s", url)
			}
		})
	}
}

func TestCommandsUseNoDevOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	t.Chdir(t.TempDir())
	s, err := openDevState(false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if runningDev() == "" {
		t.Fatal("a command does not find the gem dev of this folder")
	}
	if err := os.Chown(devFile, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if url := runningDev(); url != "" {
		t.Errorf("a command would use %s, of another user", url)
	}
}

// A file that came with a clone, or was copied with other rights, has passwords that others may know.
func TestDevUsesNoPasswordsThatOthersMayKnow(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir(devFolder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(devFile, []byte(`{"port": 15001, "password": "known", "jwt_secret": "known"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(devFile, 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err := openDevState(false); err == nil || !strings.Contains(err.Error(), "is open to other users (mode 0644)") ||
		!strings.Contains(err.Error(), "gem dev --fresh") {
		if err == nil {
			s.close()
		}
		t.Fatalf("it was opened, or the error does not say what to do: %v", err)
	}
	s, err := openDevState(true)
	if err != nil {
		t.Fatal(err)
	}
	if s.Password == "known" || s.JWTSecret == "known" || s.Password == "" {
		t.Errorf("the passwords are %q and %q", s.Password, s.JWTSecret)
	}
	password := s.Password
	s.close()
	if s, err = openDevState(false); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if s.Password != password {
		t.Errorf("the next start has another password")
	}
}

// A page tells its reader to copy these files into a folder where gem dev writes the schemas.
func TestExamplesThatAreCopiedNameASchemaThatDevWrites(t *testing.T) {
	schemas := map[string]string{}
	for _, page := range pagesWithSamples(t) {
		for _, found := range regexp.MustCompile(`(?m)^cp (docs/examples/\S+\.json) \S+$`).
			FindAllStringSubmatch(readPage(t, page), -1) {
			var file struct {
				Schema string `json:"$schema"`
			}
			if err := json.Unmarshal([]byte(readPage(t, found[1])), &file); err != nil {
				t.Fatal(err)
			}
			schemas[found[1]] = file.Schema
		}
	}
	if len(schemas) < 3 {
		t.Errorf("only these files are copied: %v", schemas)
	}
	t.Chdir(t.TempDir())
	if err := os.Mkdir(devFolder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeDevFolder(); err != nil {
		t.Fatal(err)
	}
	for name, schema := range schemas {
		if _, err := os.Stat(schema); err != nil {
			t.Errorf("the $schema of a copy of %s leads nowhere: %v", name, err)
		}
	}
}
