//go:build unix

package mcpclient

import (
	"os/exec"
	"syscall"
)

// inGroup makes a program the leader of a new process group, so that it does not get the worker's signals, and ends
// with the processes that it started.
func inGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func terminateGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
