//go:build !unix

package servers

import "os/exec"

func inGroup(*exec.Cmd) {}

func terminateGroup(cmd *exec.Cmd) { killGroup(cmd) }

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
