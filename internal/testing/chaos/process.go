//go:build !windows

package chaos

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// process is a worker with its connection to Postgres.
type process struct {
	name  string
	cmd   *exec.Cmd
	proxy *proxy
	last  *tail
	ended chan struct{} // closed when it has ended

	mu     sync.Mutex
	killed bool      // by kill -9
	told   time.Time // when it was asked to stop, or zero

}

// stopLimit limits an orderly stop of a worker that cannot reach Postgres. Each of its statements has ten seconds.
const stopLimit = 60 * time.Second

// keepWorking runs one worker after another in a slot, as a platform does, until ctx ends. It kills the last one, which
// has no work left.
func (h *harness) keepWorking(ctx context.Context, slot int) {
	r := stream(h.Seed, workerStream+uint64(slot))
	var proxies sync.WaitGroup
	defer proxies.Wait()
	for number := 1; ctx.Err() == nil; number++ {
		p, err := h.startWorker(ctx, fmt.Sprintf("worker-%d-%d", slot+1, number), between(r, 0, 400*time.Millisecond))
		if err != nil {
			h.fault("start a worker: %v", err)
			return
		}
		h.put(slot, p)
		select {
		case <-p.ended:
		case <-ctx.Done():
			p.end()
			<-p.ended
		}
		h.put(slot, nil)
		if fault := p.verdict(); fault != "" {
			h.fault("%s %s", p.name, fault)
		}
		proxies.Go(p.proxy.retire)
		sleep(ctx, between(r, 0, 1500*time.Millisecond))
	}
}

func (h *harness) put(slot int, p *process) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.workers[slot] = p
}

func (h *harness) startWorker(ctx context.Context, name string, grace time.Duration) (*process, error) {
	way, err := startProxy(context.WithoutCancel(ctx), func() string { return h.server.address().Host })
	if err != nil {
		return nil, err
	}
	database := h.server.address()
	database.Host = way.address()
	j := job{Name: name, Database: database.String(), Outside: h.outside.url, Routes: h.models.routes(), Grace: grace,
		Verbose: h.Logs != "", Rules: h.Rules}
	cmd, err := child(ctx, asWorker, jobVariable+"="+encode(j))
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: cmd, proxy: way, last: &tail{}, ended: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: h.minder.cmd.Process.Pid}
	_, err = cmd.StdinPipe() // the process ends when this closes
	cmd.Stderr = p.last
	var log *os.File
	if h.Logs != "" && err == nil {
		log, err = os.Create(filepath.Join(h.Logs, name+".log"))
		cmd.Stderr = io.MultiWriter(p.last, log)
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		way.retire()
		return nil, err
	}
	go func() {
		_ = cmd.Wait()
		_ = log.Close()
		close(p.ended)
	}()
	return p, nil
}

// kill sends kill -9. It returns false if the process has ended or was already told to end.
func (p *process) kill() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed || !p.told.IsZero() || !p.runs() {
		return false
	}
	p.killed = true
	return p.cmd.Process.Kill() == nil
}

// end kills the process at the end of the run.
func (p *process) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = p.runs() && p.cmd.Process.Kill() == nil
}

// stop stops the process with SIGTERM. It ends a process that takes too long.
func (p *process) stop() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed || !p.told.IsZero() || !p.runs() || p.cmd.Process.Signal(syscall.SIGTERM) != nil {
		return false
	}
	p.told = time.Now()
	go func() {
		select {
		case <-p.ended:
		case <-time.After(stopLimit):
			_ = p.cmd.Process.Signal(syscall.SIGQUIT) // prints its goroutines
		}
	}()
	return true
}

// pause suspends the process for d, or until ctx ends.
func (p *process) pause(ctx context.Context, d time.Duration) bool {
	if p.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	sleep(ctx, d)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	return true
}

func (p *process) runs() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// verdict describes the fault in the end of the process, or returns "".
func (p *process) verdict() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.cmd.ProcessState
	switch status := state.Sys().(syscall.WaitStatus); {
	case p.killed && status.Signaled():
		return ""
	case !p.told.IsZero() && (state.Success() || status.Signal() == syscall.SIGTERM): // SIGTERM may come too early
		return ""
	case state.ExitCode() == exitCouldNotBegin:
		return "" // Postgres was away for long; the platform starts the worker again
	case !p.told.IsZero():
		return fmt.Sprintf("was told to stop %s ago and ended with %s: %s", time.Since(p.told).Round(time.Second), state,
			p.last)
	default:
		return fmt.Sprintf("ended by itself, with %s: %s", state, p.last)
	}
}

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const most = 16 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	t.end = t.end[max(0, len(t.end)-most):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
