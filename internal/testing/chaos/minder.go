//go:build !windows

package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// childMode is the environment variable that makes this program one of the two child processes of a run.
const (
	childMode = "GEM_CHAOS_CHILD"
	asWorker  = "worker"
	asMinder  = "minder"
)

// Child runs the part for which [Run] started this process, and does not return. In any other process it does nothing.
// A program that calls Run must call Child first.
func Child() {
	switch os.Getenv(childMode) {
	case asWorker:
		os.Exit(work())
	case asMinder:
		os.Exit(mind())
	}
}

// minder is a process that outlives the run and cleans up. It starts to clean up when its input closes, which also
// happens when this program is killed. It removes the folder of Postgres as soon as Postgres has stopped, and kills its
// process group, which contains the workers. A worker ends by itself when its input closes, but not while it is paused.
type minder struct {
	cmd    *exec.Cmd
	input  io.Closer
	folder string // for the data of Postgres
}

func startMinder(ctx context.Context) (*minder, error) {
	cmd, err := child(ctx, asMinder)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err1 := cmd.StdinPipe()
	output, err2 := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the minder: %w", err)
	}
	m := &minder{cmd: cmd, input: input}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the minder says nothing: %w", err), m.close())
	}
	m.folder = strings.TrimSpace(line)
	return m, nil
}

// close returns when everything is cleaned up.
func (m *minder) close() error {
	err := m.input.Close()
	_ = m.cmd.Wait() // its last act is to kill its group
	if m.folder == "" {
		return err
	}
	if _, there := os.Lstat(m.folder); there == nil {
		err = errors.Join(err, fmt.Errorf("%s is still there", m.folder))
	}
	return err
}

// mind is the main function of the minder's process.
func mind() int {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	folder, err := os.MkdirTemp("", "gem-chaos-")
	if err == nil {
		fmt.Println(folder)
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = syscall.Kill(0, syscall.SIGCONT) // paused workers now notice that their input has closed
		// Postgres and its keeper hold the lock while either runs.
		if lock, err := os.Open(filepath.Join(folder, "lock")); err == nil {
			_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
		}
		err = os.RemoveAll(folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	_ = syscall.Kill(0, syscall.SIGKILL)
	return 1
}

// child returns a command that starts this program again as one of its parts. It outlives every context and ends when
// its input closes.
func child(ctx context.Context, as string, env ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self)
	cmd.Env = append(append(os.Environ(), childMode+"="+as), env...)
	return cmd, nil
}
