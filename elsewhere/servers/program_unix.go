//go:build unix

package servers

import (
	"os/exec"
	"syscall"
)

// inGroup lets a program lead a group of its own: it gets no signal that is meant for the worker, and ends with those that it started.
func inGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func terminateGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
