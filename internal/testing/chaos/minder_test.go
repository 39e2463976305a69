//go:build !windows

package chaos

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asDoomed makes this program a run that starts everything, pauses a worker, and waits to be killed.
const asDoomed = "doomed"

func doomed() {
	ctx := context.Background()
	die := func(err error) { fmt.Println("failed:", err); os.Exit(1) }
	h, err := open(ctx, Options{Workers: 2}.withDefaults())
	if err != nil {
		die(err)
	}
	pids := []any{h.minder.folder, h.minder.cmd.Process.Pid}
	for i := range h.Workers {
		p, err := h.startWorker(ctx, fmt.Sprint("doomed-", i), 0)
		if err != nil {
			die(err)
		}
		pids = append(pids, p.cmd.Process.Pid)
		if i == 0 {
			err = p.cmd.Process.Signal(syscall.SIGSTOP)
		}
		if err != nil {
			die(err)
		}
	}
	fmt.Println(pids...)
	select {}
}

func TestARunThatIsKilledLeavesNothing(t *testing.T) {
	t.Parallel()
	run, err := child(t.Context(), asDoomed)
	if err != nil {
		t.Fatal(err)
	}
	output, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	var folder string
	pids := make([]int, 3)
	if _, scanErr := fmt.Sscan(line, &folder, &pids[0], &pids[1], &pids[2]); err != nil || scanErr != nil {
		t.Errorf("it said %q: %v", line, err)
	}
	if _, err := os.Stat(folder); err != nil {
		t.Error(err)
	}
	if err := run.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = run.Wait()

	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var left []string
		if _, err := os.Lstat(folder); err == nil {
			left = append(left, folder)
		}
		for _, pid := range pids {
			if runs(pid) {
				left = append(left, fmt.Sprint("process ", pid))
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a minute after its death there are still %s", strings.Join(left, ", "))
		}
	}
}

// runs reports whether the process runs. A dead process that its new parent has not reaped yet does not run.
func runs(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}
