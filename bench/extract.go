package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/gemworker/gem/internal/testing/llmtest"
	"github.com/jackc/pgx/v5"
)

// extracting has the amount of text and the delay of the model.
type extracting struct {
	shards int
	delay  time.Duration // of a model that does not answer at once
}

const (
	shardSize     = 4000 // characters of a paragraph with the blank line after it; each paragraph is a shard
	itemsOfShard  = 10
	partOfText    = 100 * shardSize // of a call to extract.add_document
	extractLimit  = 3 * time.Minute
	slotsOfReader = 10
)

// paragraphs returns a text of n paragraphs. Texts with different values of changed differ in one paragraph.
func paragraphs(n, changed int) string {
	var text strings.Builder
	for i := range n {
		var p strings.Builder
		for item := range itemsOfShard {
			fmt.Fprintf(&p, "Item %d-%d of the list was delivered in the week that was agreed upon. ", i, item)
			for p.Len() < (item+1)*shardSize/itemsOfShard-100 {
				p.WriteString("It lay in the yard behind the hall until someone signed for it. ")
			}
		}
		word := "dry"
		if i == n/2 && changed > 0 {
			word = "wet" // of the same length
		}
		p.WriteString("All of it was " + word + ".")
		p.WriteString(strings.Repeat(".", shardSize-2-p.Len()) + "\n\n")
		text.WriteString(p.String())
	}
	return text.String()
}

var item = regexp.MustCompile(`Item [0-9]+-[0-9]+`)

// reader returns a provider whose model finds the items of a text.
func reader(delay time.Duration) *llmtest.Server {
	return llmtest.New(llmtest.Options{Answer: func(r *llmtest.Request) llmtest.Script {
		_, text, _ := strings.Cut(r.Asked.Messages[0].Content[0].Text, "<<<TEXT ")
		text, _, _ = strings.Cut(text, "\n<<<")
		found := []map[string]string{}
		for _, quote := range item.FindAllString(text, -1) {
			found = append(found, map[string]string{"class": "item", "quote": quote})
		}
		script := llmtest.Say(jsonOf(map[string]any{"extractions": found}))
		script.Before = func(ctx context.Context, delta int) {
			if delta == -1 && delay > 0 {
				_ = sleepUntil(ctx, time.Now().Add(delay))
			}
		}
		return script
	}})
}

// reading is a database with two workers of the gem program and a model.
type reading struct {
	*stage
	server     *llmtest.Server
	pids       []int
	postmaster int
}

func (b *bench) withReaders(ctx context.Context, c contestant, delay time.Duration, run func(*reading) error) error {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return err
	}
	defer s.drop()
	r := &reading{stage: s, server: reader(delay)}
	defer r.server.Close()
	for range 2 {
		pid, stop, err := b.startWorker(ctx, s, "LLM_ROUTES="+routesTo(r.server),
			fmt.Sprint("WORKER_CONCURRENCY=", slotsOfReader))
		if err != nil {
			return err
		}
		defer stop()
		r.pids = append(r.pids, pid)
	}
	if err := r.started(ctx, len(r.pids)); err != nil {
		return err
	}
	if r.postmaster, err = s.postmaster(ctx); err != nil && !errors.Is(err, errNoProc) {
		return err
	}
	return run(r)
}

// started returns when n workers have started.
func (s *stage) started(ctx context.Context, n int) error {
	for {
		var workers int
		if err := s.db.QueryRow(ctx, "select count(*) from core_workers").Scan(&workers); err != nil || workers >= n {
			return err
		}
		if err := sleepUntil(ctx, time.Now().Add(10*time.Millisecond)); err != nil {
			return err
		}
	}
}

// call makes a call. It returns its result and the seconds from the insert to the commit of its receipt.
func (r *reading) call(ctx context.Context, tool string, input any) (result json.RawMessage, seconds float64,
	err error) {
	var id string
	if err := r.db.QueryRow(ctx, "insert into core_tool_calls (tool_name, input) values ($1, $2) returning id::text", tool,
		jsonOf(input)).Scan(&id); err != nil {
		return nil, 0, err
	}
	for limit := time.Now().Add(extractLimit); time.Now().Before(limit); {
		var status string
		err := r.db.QueryRow(ctx, `select r.status, r.result,
			extract(epoch from pg_xact_commit_timestamp(r.xmin) - pg_xact_commit_timestamp(e.xmin))::float8
			from core_tool_receipts r join core_tool_events e on e.call_id = r.call_id and e.seq = 1 where r.call_id = $1`,
			id).Scan(&status, &result, &seconds)
		if err == nil && status != "succeeded" {
			err = fmt.Errorf("%s is %s: %.500s", tool, status, result)
		}
		if err == nil || !errors.Is(err, pgx.ErrNoRows) {
			return result, seconds, err
		}
		if err := sleepUntil(ctx, time.Now().Add(20*time.Millisecond)); err != nil {
			return nil, 0, err
		}
	}
	return nil, 0, fmt.Errorf("%s did not end in %v", tool, extractLimit)
}

// document adds a text in parts and returns the input of an extract.run that reads it.
func (r *reading) document(ctx context.Context, text string) (any, error) {
	var made struct {
		ID string `json:"document_id"`
	}
	for len(text) > 0 {
		part := map[string]string{"text": text[:min(len(text), partOfText)]}
		if made.ID != "" {
			part["document_id"] = made.ID
		}
		result, _, err := r.call(ctx, "extract.add_document", part)
		if err == nil {
			err = json.Unmarshal(result, &made)
		}
		if err != nil {
			return nil, err
		}
		text = text[len(part["text"]):]
	}
	return map[string]any{"document_id": made.ID, "chunk": map[string]int{"size": shardSize},
		"program": map[string]any{"instructions": "Extract the items of the list.",
			"classes": []map[string]string{{"name": "item"}}}}, nil
}

// read runs extract.run and checks that it found all items. It returns the duration and the number of requests to the
// model.
func (r *reading) read(ctx context.Context, input any, shards int) (seconds float64, requests int, err error) {
	before := r.server.Counts().Requests
	result, seconds, err := r.call(ctx, "extract.run", input)
	if err != nil {
		return 0, 0, err
	}
	var got struct{ Extractions, Shards []json.RawMessage }
	if err := json.Unmarshal(result, &got); err != nil {
		return 0, 0, err
	}
	if len(got.Shards) != shards || len(got.Extractions) != shards*itemsOfShard {
		return 0, 0, fmt.Errorf("%d shards and %d items, not %d and %d", len(got.Shards), len(got.Extractions), shards,
			shards*itemsOfShard)
	}
	return seconds, r.server.Counts().Requests - before, nil
}

// cpu returns the CPU time of the server and of the workers so far, in milliseconds.
func (r *reading) cpu() (server, workers float64, err error) {
	used, err := cpuTimes(r.postmaster, r.pids...)
	for _, own := range used[:len(r.pids)] {
		workers += milliseconds(own)
	}
	return milliseconds(used[len(r.pids)]), workers, err
}

// measured runs read and returns its figures. Their names begin with measure. The CPU time is per shard.
func (r *reading) measured(ctx context.Context, measure string, input any, shards int) ([]figure, error) {
	serverBefore, workersBefore, cpuErr := r.cpu()
	seconds, requests, err := r.read(ctx, input, shards)
	if err != nil {
		return nil, err
	}
	n := float64(shards)
	figures := []figure{{measure: measure, unit: "s", value: seconds},
		{measure: measure + "-requests", unit: "requests", value: float64(requests)},
		{measure: measure + "-shard", unit: "ms/shard", value: seconds * 1000 / n}}
	if errors.Is(cpuErr, errNoProc) {
		say("%s-cpu is not measured here: %v", measure, cpuErr)
		return figures, nil
	}
	server, workers, err := r.cpu()
	return append(figures, figure{measure: measure + "-cpu-postgres", unit: "ms/shard",
			value: (server - serverBefore) / n},
			figure{measure: measure + "-cpu-worker", unit: "ms/shard", value: (workers - workersBefore) / n}),
		errors.Join(cpuErr, err)
}

// documents measures extract.run on a new text, on the same text again, and on the text with one changed paragraph.
func documents(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	n := b.sizes.extracting.shards
	err = b.withReaders(ctx, c, 0, func(r *reading) error {
		var input any
		for _, m := range []struct {
			measure string
			changed int
		}{{"extract-0ms", 0}, {"extract-again", 0}, {"extract-changed", 1}} {
			if m.measure != "extract-again" {
				if input, err = r.document(ctx, paragraphs(n, m.changed)); err != nil {
					return err
				}
			}
			got, err := r.measured(ctx, m.measure, input, n)
			if figures = append(figures, got...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return figures, err
	}
	err = b.withReaders(ctx, c, b.sizes.extracting.delay, func(r *reading) error {
		input, err := r.document(ctx, paragraphs(n, 0))
		if err != nil {
			return err
		}
		got, err := r.measured(ctx, "extract-500ms", input, n)
		figures = append(figures, got...)
		return err
	})
	return figures, err
}
