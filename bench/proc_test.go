package main

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestCPUTimeOfServerCountsChildrenThatEnded(t *testing.T) {
	before, err := cpuTimeOfServer(os.Getpid())
	if errors.Is(err, errNoProc) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), "sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	after, err := cpuTimeOfServer(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const rounding = 20 * time.Millisecond
	used := child.ProcessState.UserTime() + child.ProcessState.SystemTime()
	if got := after - before; got < used-rounding {
		t.Errorf("got %v, want at least the %v of the child", got, used)
	}
}
