package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

// chatting has the sizes for the measures of llm.chat.
type chatting struct {
	chats   int           // answered at once
	streams int           // open at a time
	stalled int           // open while other calls are made
	beside  time.Duration // time during which those other calls are made
	cancels int
}

// routesTo returns a routes file for a model server.
func routesTo(s *llmtest.Server) string {
	return jsonOf(map[string]any{"version": "bench",
		"providers": map[string]any{"fake": map[string]any{"dialect": "openai", "base_url": s.BaseURL(llmtest.OpenAI),
			"local": true}},
		"targets": map[string]any{"fake": map[string]any{"provider": "fake", "model": "fake", "context": 100000,
			"max_output": 10000, "capabilities": []string{},
			"first_content_s": 600, "idle_s": 600}},
		"routes": map[string]any{"default": map[string]any{"targets": []string{"fake"}}}})
}

// chat returns the input of a chat. kind selects the server's behaviour.
func chat(kind string) string {
	return jsonOf(map[string]any{"messages": []map[string]string{{"role": "user", "content": kind}}})
}

// chats queues calls to llm.chat.
func (s *stage) chats(ctx context.Context, n int, kind string) error {
	_, err := s.db.Exec(ctx, "insert into core_tool_calls (tool_name, input) select 'llm.chat', $1::jsonb from "+
		"generate_series(1, $2::int)", chat(kind), n)
	return err
}

// models returns a provider. It answers at once, or it begins an answer and continues after release or when its client
// disconnects.
func models(release <-chan struct{}) *llmtest.Server {
	return llmtest.New(llmtest.Options{Answer: func(r *llmtest.Request) llmtest.Script {
		script := llmtest.Say("Called back, wants an offer by Friday.")
		script.Usage = &provider.Usage{Input: 20, Output: 10, Known: true}
		if r.Asked.Messages[0].Content[0].Text == "stall" {
			script.Before = func(ctx context.Context, delta int) {
				if delta == 1 {
					select {
					case <-release:
					case <-ctx.Done():
					}
				}
			}
		}
		return script
	}})
}

// withModels starts a provider and a worker of the gem program.
func (b *bench) withModels(ctx context.Context, c contestant, slots int,
	run func(s *stage, pid int, server *llmtest.Server, release chan struct{}) error) error {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return err
	}
	defer s.drop()
	release := make(chan struct{})
	server := models(release)
	defer server.Close()
	pid, stop, err := b.startWorker(ctx, s, "LLM_ROUTES="+routesTo(server), fmt.Sprint("WORKER_CONCURRENCY=", slots),
		"WORKER_CONNECTIONS=10")
	if err != nil {
		return err
	}
	defer stop()
	if err := s.notes(ctx, warmUp); err != nil {
		return err
	}
	if err := s.waitEnded(ctx, c, warmUp); err != nil {
		return err
	}
	return run(s, pid, server, release)
}

// chatsAtOnce measures GEM's overhead for calls to llm.chat whose answers come at once.
func chatsAtOnce(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	n := b.sizes.chatting.chats
	err = b.withModels(ctx, c, 200, func(s *stage, pid int, _ *llmtest.Server, _ chan struct{}) error {
		if err := s.chats(ctx, 20, "hello"); err != nil {
			return err
		}
		if err := s.waitEnded(ctx, c, warmUp+20); err != nil {
			return err
		}
		postmaster, procErr := s.postmaster(ctx)
		before, cpuErr := cpuTimes(postmaster, pid)
		began := time.Now()
		if err := s.chats(ctx, n, "hello"); err != nil {
			return err
		}
		if err := s.waitEnded(ctx, c, warmUp+20+n); err != nil {
			return err
		}
		figures = []figure{{measure: "llm-chats", unit: "calls/s", value: float64(n) / time.Since(began).Seconds()}}
		if errors.Is(cpuErr, errNoProc) {
			say("llm-cpu-worker and llm-cpu-postgres are not measured here: %v", cpuErr)
			return nil
		}
		after, err := cpuTimes(postmaster, pid)
		if err := errors.Join(procErr, cpuErr, err); err != nil {
			return err
		}
		for i, measure := range []string{"llm-cpu-worker", "llm-cpu-postgres"} {
			figures = append(figures, figure{measure: measure, unit: "µs",
				value: float64((after[i] - before[i]).Microseconds()) / float64(n)})
		}
		return nil
	})
	return figures, err
}

// openStreams measures the worker's memory for open streams.
func openStreams(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	n := b.sizes.chatting.streams
	err = b.withModels(ctx, c, n, func(s *stage, pid int, server *llmtest.Server, release chan struct{}) error {
		defer close(release)
		idle, err := residentMemory(pid)
		if errors.Is(err, errNoProc) {
			say("llm-memory is not measured here: %v", err)
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.chats(ctx, n, "stall"); err != nil {
			return err
		}
		if err := server.Wait(ctx, func(c llmtest.Counts) bool { return c.Open == n }); err != nil {
			return err
		}
		if err := sleepUntil(ctx, time.Now().Add(2*time.Second)); err != nil {
			return err
		}
		with, err := residentMemory(pid)
		figures = []figure{{measure: "llm-idle-memory", unit: "MB", value: float64(idle) / 1e6},
			{measure: "llm-memory", unit: "MB", value: float64(with-idle) / 1e6}}
		return err
	})
	return figures, err
}

// besideChats measures other calls while chats stall, and without chats.
func besideChats(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	for _, m := range []struct {
		measure string
		stalled int
	}{{"llm-meanwhile-none", 0}, {"llm-meanwhile", b.sizes.chatting.stalled}} {
		err := b.withModels(ctx, c, 200, func(s *stage, _ int, server *llmtest.Server, release chan struct{}) error {
			defer close(release)
			if err := s.chats(ctx, m.stalled, "stall"); err != nil {
				return err
			}
			if err := server.Wait(ctx, func(c llmtest.Counts) bool { return c.Open == m.stalled }); err != nil {
				return err
			}
			var n atomic.Int64
			insert := func(ctx context.Context) (id string, err error) {
				err = s.db.QueryRow(ctx, `insert into core_tool_calls (tool_name, input)
					values ('leads.create', jsonb_build_object('name', 'Jo', 'suburb', 'North', 'phone', '+1555' || $1::text))
						returning id::text`,
					fmt.Sprintf("%07d", n.Add(1))).Scan(&id)
				return id, err
			}
			inserted, err := insertAt(ctx, insert, 20, b.sizes.chatting.beside)
			if err != nil {
				return err
			}
			if err := s.waitEnded(ctx, c, warmUp+len(inserted)); err != nil {
				return err
			}
			took, err := s.took(ctx, c, inserted)
			if err != nil {
				return err
			}
			figures = append(figures, figure{measure: m.measure, unit: "ms", value: median(took), singles: took},
				figure{measure: m.measure + "-p99", unit: "ms", value: rank(took, 0.99)})
			return nil
		})
		if err != nil {
			return figures, err
		}
	}
	return figures, nil
}

// rank returns the nearest rank of a fraction of the values.
func rank(values []float64, part float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

// cancelledChats measures the time from a request to cancel a call to the end of its connection.
func cancelledChats(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	var took []float64
	err = b.withModels(ctx, c, 10, func(s *stage, _ int, server *llmtest.Server, release chan struct{}) error {
		defer close(release)
		for range b.sizes.chatting.cancels {
			var id string
			if err := s.db.QueryRow(ctx, "insert into core_tool_calls (tool_name, input) values ('llm.chat', $1) returning "+
				"id::text", chat("stall")).Scan(&id); err != nil {
				return err
			}
			if err := server.Wait(ctx, func(c llmtest.Counts) bool { return c.Open == 1 }); err != nil {
				return err
			}
			began := time.Now()
			if _, err := s.db.Exec(ctx, "select cancel_tool_call($1)", id); err != nil {
				return err
			}
			if err := server.Wait(ctx, func(c llmtest.Counts) bool { return c.Open == 0 }); err != nil {
				return err
			}
			took = append(took, milliseconds(time.Since(began)))
		}
		return nil
	})
	return []figure{{measure: "llm-cancel", unit: "ms", value: median(took), singles: took}}, err
}
