package mcpclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers"
	"go.uber.org/zap"
)

// endTime is how long a program has to end after its input was closed, and again after the signal.
const endTime = 1500 * time.Millisecond

// program is a server that the worker started. It leads a process group, which ends with it, because npx and uvx start
// other processes.
type program struct {
	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	gone   chan struct{} // closed when the program and its group have ended
	ending sync.Once
}

// always are the variables that every program gets: without them most programs are not found or do not start.
var always = []string{"PATH", "HOME", "TMPDIR"}

// start starts the program of a session.
func (s *session) start(settings backends.Server) (_ *program, err error) {
	path, err := exec.LookPath(settings.Command)
	if err != nil {
		return nil, &handlers.NotConfigured{
			Reason: fmt.Sprintf("The program %s of the MCP server %s is not where the worker runs.", settings.Command,
				s.server.domain),
			NextSteps: []string{"Install it there, or write another command for " + s.server.domain + " into domains.json.",
				"Restart the worker and make the call again."},
		}
	}
	cmd := exec.CommandContext(context.Background(), path, settings.Args...) // it ends with its session
	cmd.Env = []string{}
	for _, name := range always {
		if v, set := os.LookupEnv(name); set && !slices.Contains(settings.Env, name) {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	for _, name := range settings.Env {
		cmd.Env = append(cmd.Env, name+"="+s.secrets[name])
	}
	cmd.Stderr = &lines{secrets: s.secrets, say: func(line string, left int) {
		s.server.log.Info("the MCP server says", zap.String("line", line), zap.Int("lines_left_out", left))
	}}
	cmd.WaitDelay = endTime // a process that it left behind may hold its stderr
	inGroup(cmd)
	p := &program{cmd: cmd, gone: make(chan struct{})}
	childIn, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stdout, childOut, err := os.Pipe()
	if err != nil {
		_, _ = childIn.Close(), stdin.Close()
		return nil, err
	}
	p.stdin, p.stdout, cmd.Stdin, cmd.Stdout = stdin, stdout, childIn, childOut
	err = cmd.Start()
	_, _ = childIn.Close(), childOut.Close()
	if err != nil {
		_, _ = stdin.Close(), stdout.Close()
		return nil, fmt.Errorf("start %s: %w", settings.Command, err)
	}
	go func() {
		err := cmd.Wait()
		killGroup(cmd) // the rest of the group; its end of the pipe closes with the last process
		s.server.log.Info("the program of the MCP server has ended", zap.String("state", cmd.ProcessState.String()),
			zap.NamedError("wait", unlessExit(err)))
		close(p.gone)
	}()
	return p, nil
}

// unlessExit drops an error that only reports how the program ended.
func unlessExit(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil
	}
	return err
}

// Write writes to the program. It waits as long as the program leaves its input unread: see [input].
func (p *program) Write(b []byte) (int, error) {
	n, err := p.stdin.Write(b)
	if err != nil && n == 0 {
		err = &unsentError{err}
	}
	return n, err
}

// unsentError is the error of a message that the server did not receive: a program got no byte of it, another server no
// complete header.
type unsentError struct{ error }

func (u *unsentError) Unwrap() error { return u.error }

// Close closes the program's input, so that the program ends.
func (p *program) Close() error {
	go p.end()
	return nil
}

// end closes the program's input and returns when the program has ended: by itself, by a signal, or killed.
func (p *program) end() {
	p.ending.Do(func() {
		_ = p.stdin.Close()
		if p.within(endTime) {
			return
		}
		terminateGroup(p.cmd)
		if p.within(endTime) {
			return
		}
		killGroup(p.cmd)
	})
	p.within(endTime)
}

// kill ends the program at once.
func (p *program) kill() {
	select {
	case <-p.gone:
	default:
		killGroup(p.cmd)
	}
	_ = p.stdin.Close()
}

func (p *program) within(d time.Duration) bool {
	select {
	case <-p.gone:
		return true
	case <-time.After(d):
		return false
	}
}

var _ io.WriteCloser = (*program)(nil)
