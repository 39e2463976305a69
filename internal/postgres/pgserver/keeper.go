//go:build !windows

package pgserver

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed keeper.sh
var keeperScript string

// keeper is the shell process that runs the server.
type keeper struct {
	cmd    *exec.Cmd
	folder folder
	pipe   *os.File        // the keeper stops the server when this closes
	log    *os.File        // of the keeper and of the server
	ended  context.Context // done when the keeper has ended
	status error           // its exit status, valid once it has ended
}

// stopLimit is longer than the limits of the keeper: 30 seconds for a server with data to keep, otherwise 6.
const stopLimit = 40 * time.Second

// startKeeper starts the keeper, which starts the server with these settings. On success the keeper closes the folder.
func startKeeper(f folder, bin binaries, as account, password string, o Options, settings []string) (*keeper, error) {
	log, err := f.openLog()
	if err != nil {
		return nil, err
	}
	input, pipe, err := os.Pipe() // other child processes inherit neither end
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	defer input.Close()

	afterwards, nosync := "remove", "--no-sync"
	var inherited []*os.File
	if f.kept() {
		afterwards, inherited = "keep", []*os.File{f.lock}
	}
	if o.Durable {
		nosync = ""
	}
	args := []string{
		"-c", keeperScript, "gem-postgres", f.path, afterwards,
		filepath.Join(bin.dir, "initdb"), nosync, filepath.Join(bin.dir, "postgres"), o.Template,
		o.Superuser,
	}
	cmd := as.command("/bin/sh", append(args, settings...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = input, log, log, inherited
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start /bin/sh: %w", err), pipe.Close(), log.Close())
	}

	ended, end := context.WithCancel(context.Background())
	k := &keeper{cmd: cmd, folder: f, pipe: pipe, log: log, ended: ended}
	go func() {
		defer end()
		k.status = cmd.Wait()
		k.pipe.Close() // the pipe is referenced until here, so that the garbage collector cannot close it earlier
	}()
	_, _ = fmt.Fprintln(pipe, password) // if the keeper has already ended, its exit is reported
	return k, nil
}

// stop stops the server and closes the folder. It must be called only once.
func (k *keeper) stop() error {
	k.pipe.Close()
	group := k.cmd.Process.Pid
	var err error
	select {
	case <-k.ended.Done():
	case <-time.After(stopLimit):
		err = errors.Join(fmt.Errorf("the server in %s did not stop within %v and was killed", k.folder.path, stopLimit),
			syscall.Kill(-group, syscall.SIGKILL))
	}
	// Normally the keeper ends last. If it was killed, wait for the rest of its process group.
	for tries := 0; tries < 50 && !gone(-group); tries++ {
		time.Sleep(100 * time.Millisecond)
	}
	return errors.Join(err, k.folder.close(), k.log.Close())
}

// gone reports whether a process, or a process group if pid is negative, no longer exists.
func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// logTail returns the end of the log.
func (k *keeper) logTail() string {
	info, err := k.log.Stat()
	if err != nil {
		return "its log cannot be read: " + err.Error()
	}
	text := make([]byte, min(info.Size(), 2<<10))
	n, _ := k.log.ReadAt(text, info.Size()-int64(len(text)))
	if n == 0 {
		return "its log is empty"
	}
	return "its log ends with:\n" + strings.TrimSpace(string(text[:n]))
}
