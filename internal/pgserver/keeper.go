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

// keeper is the shell process that runs the server, and the pipe that holds it up.
type keeper struct {
	cmd    *exec.Cmd
	folder folder
	pipe   *os.File        // the keeper stops the server when this end closes
	log    *os.File        // of the keeper and of the server
	ended  context.Context // done when the keeper has ended
	status error           // how it ended; to be read after that
}

// stopLimit is longer than the keeper's own patience: a server with data to keep has 30 seconds, any other 6.
const stopLimit = 40 * time.Second

// startKeeper starts the keeper, which starts the server. It takes over the folder when it succeeds.
func startKeeper(f folder, bin binaries, as *account, password string, settings []string) (_ *keeper, err error) {
	log, err := f.openLog()
	if err != nil {
		return nil, err
	}
	// Both ends are closed in all other programs that this one starts.
	input, pipe, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	defer input.Close()

	afterwards, nosync := "remove", "--no-sync"
	if f.kept() {
		afterwards = "keep"
	}
	if f.durable {
		nosync = ""
	}
	args := []string{
		"-c", keeperScript, "gem-postgres", f.path, afterwards,
		filepath.Join(bin.dir, "initdb"), nosync, filepath.Join(bin.dir, "postgres"),
	}
	cmd := as.command("/bin/sh", append(args, settings...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, log, log
	if f.kept() {
		cmd.ExtraFiles = []*os.File{f.lock}
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start /bin/sh: %w", err), pipe.Close(), log.Close())
	}

	ended, end := context.WithCancel(context.Background())
	k := &keeper{cmd: cmd, folder: f, pipe: pipe, log: log, ended: ended}
	go func() {
		defer end()
		k.status = cmd.Wait()
		// Until here the pipe is in use, whatever has become of the Server: it is not closed as garbage.
		k.pipe.Close()
	}()
	// A keeper that has ended already is noticed by its exit.
	_, _ = fmt.Fprintln(pipe, password)
	return k, nil
}

// stop stops the server and gives up the folder. It is called once.
func (k *keeper) stop() error {
	k.pipe.Close()
	group := k.cmd.Process.Pid
	var err error
	select {
	case <-k.ended.Done():
	case <-time.After(stopLimit):
		err = fmt.Errorf("the server in %s did not stop within %v and was killed", k.folder.path, stopLimit)
		if killed := syscall.Kill(-group, syscall.SIGKILL); killed != nil {
			return fmt.Errorf("kill the server in %s, process group %d: %w", k.folder.path, group, killed)
		}
		<-k.ended.Done()
	}
	// The keeper ends last, unless it was killed.
	for range 50 {
		if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.Join(err, k.folder.remove(), k.folder.close(), k.log.Close())
}

// lastWords is the end of the log.
func (k *keeper) lastWords() string {
	const most = 2 << 10
	end, err := k.log.Seek(0, 2)
	if err != nil {
		return "its log can not be read: " + err.Error()
	}
	text := make([]byte, min(end, most))
	n, _ := k.log.ReadAt(text, end-int64(len(text)))
	if n == 0 {
		return "its log is empty"
	}
	return "its log ends with:\n" + strings.TrimSpace(string(text[:n]))
}
