package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// exchanging holds the sizes for the measures of tools behind HTTP.
type exchanging struct {
	calls, turns     int // number of calls of each kind in a turn; number of turns
	kept             int // number of steps that each of the two functions writes
	entries, replays int // number of entries in the journal; number of requests with this journal
	parked           int // number of calls that are parked at a time
}

// serviceArgument starts the bench as a service for tools. A process of its own keeps the CPU of the service apart from
// that of the worker.
const serviceArgument = "service"

// serviceSecret signs the requests to services.
var serviceSecret = bytes.Repeat([]byte("s"), 32)

// serviceVariable gives the secret to services and to the worker that calls them.
var serviceVariable = "BENCH_SECRET=whsec_" + base64.StdEncoding.EncodeToString(serviceSecret)

// serveTools serves tools until its standard input ends, which happens when the bench ends. It checks no signature,
// because only the cost of its caller is measured. The note in a call's input is the number of steps of the call. After
// its steps, a call of bench.parked waits, and any other call returns. GET returns how many calls have reached that
// point so far.
func serveTools() error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + listener.Addr().String())
	var served atomic.Int64
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // local
		if r.Method == http.MethodGet {
			fmt.Fprint(w, served.Load())
			return
		}
		var asked struct {
			GEM      int
			Call     struct{ Tool string }
			Input    payload
			Exchange struct{ Steps int }
		}
		_ = json.NewDecoder(r.Body).Decode(&asked)
		wanted, _ := strconv.Atoi(asked.Input.Note)
		const result = `"result": {"note_id": "none", "status": "answered"}`
		switch steps := asked.Exchange.Steps; {
		case asked.GEM == 0:
			served.Add(1)
			fmt.Fprint(w, `{`+result+`, "effects": {}}`)
		case steps < wanted:
			fmt.Fprintf(w, `{"gem": 1, "steps": %d, "ops": [{"op": "step", "name": "step %[1]d", "kind": "step", `+
				`"result": {"price": 4200}}]}`, steps)
		case asked.Call.Tool == "bench.parked":
			served.Add(1)
			fmt.Fprintf(w, `{"gem": 1, "steps": %d, "ops": [], "wait": {"need": 1, "for": [{"name": "#paid"}]}}`, steps)
		default:
			served.Add(1)
			fmt.Fprintf(w, `{"gem": 1, "steps": %d, "ops": [], `+result+`, "unread": []}`, steps)
		}
	}))
}

// startService starts a program that serves tools. It returns the URL that the program prints, and a function that
// stops the program.
func startService(ctx context.Context, folder, program string, args ...string) (url string, stop func(), err error) {
	cmd, end := command(ctx, folder, program, args, append(os.Environ(), serviceVariable))
	stop = func() { end(); _ = cmd.Wait() }
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe() // open until the bench ends
	var out io.Reader
	if err == nil {
		out, err = cmd.StdoutPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		end()
		return "", nil, fmt.Errorf("start %s: %w", program, err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("%s printed %q: %w", program, line, err)
	}
	return strings.TrimSpace(line), stop, nil
}

// behindHTTP is a database with a worker, which is a process of the gem program, and the service that it calls.
type behindHTTP struct {
	*stage
	url string // of the service
	// restart stops the worker, if there is one, and starts another.
	restart func() (pid int, err error)
}

// withService starts a service and passes it to run. run starts the worker with restart.
func (b *bench) withService(ctx context.Context, c contestant, run func(*behindHTTP) error) error {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return err
	}
	defer s.drop()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	url, stop, err := startService(ctx, b.lab.scratch, self, serviceArgument)
	if err != nil {
		return err
	}
	defer stop()
	var tools []string
	for _, name := range []string{"plain", "durable", "parked"} {
		tools = append(tools, strings.Replace(benchTool("bench."+name), `"calls": ["bench.answer"],`, "", 1))
	}
	domains := jsonOf(map[string]any{"version": "1", "bench": map[string]any{"http": map[string]any{"url": url,
		"secret_env": "BENCH_SECRET", "durable": []string{"durable", "parked"}}}})
	stopWorker := func() {}
	defer func() { stopWorker() }()
	return run(&behindHTTP{s, url, func() (pid int, err error) {
		stopWorker()
		pid, stopWorker, err = b.startWorker(ctx, s, serviceVariable, "GEM_DOMAINS="+domains,
			`TOOLS_REGISTRY={"version": "1", "tools": [`+strings.Join(tools, ", ")+`]}`, "WORKER_CONCURRENCY=100",
			"WORKER_CONNECTIONS=20")
		if err != nil {
			stopWorker = func() {}
		}
		return pid, err
	}})
}

// served returns how many calls have returned from the service or wait after their last step.
func (s *behindHTTP) served(ctx context.Context) (n int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = fmt.Fscan(answer.Body, &n)
	return n, err
}

// calls makes n calls of a tool and returns when all of them have ended or are parked. Meanwhile it asks the service
// for their number. It does not ask the database, because the CPU of the database is measured. before runs between the
// insert of the calls and its commit.
func (s *behindHTTP) calls(ctx context.Context, tool string, steps, n int, before func() error) error {
	input := newPayload(0, false)
	input.Note = fmt.Sprint(steps)
	had, err := s.served(ctx)
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if err := insertCalls(ctx, tx, tool, input, n); err != nil {
			return err
		}
		return before()
	})
	ctx, cancel := context.WithTimeout(ctx, throughputLimit)
	defer cancel()
	for open := n; err == nil && open > 0; {
		has := 0
		if err = sleepUntil(ctx, time.Now().Add(20*time.Millisecond)); err == nil {
			has, err = s.served(ctx)
		}
		if err == nil && has >= had+n {
			err = s.db.QueryRow(ctx, "select count(*) from core_tool_calls where status in ('queued', 'running')").Scan(&open)
		}
	}
	return err
}

// cpuBehindHTTP measures the CPU of a plain call, of a durable call with one step, and of a durable call with eleven
// steps. The two durable calls differ by ten exchanges with one step each.
func cpuBehindHTTP(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	kinds := []struct {
		tool  string
		steps int
	}{{"bench.plain", 0}, {"bench.durable", 1}, {"bench.durable", 11}}
	n := b.sizes.exchanging.calls
	err = b.withService(ctx, c, func(s *behindHTTP) error {
		pid, err := s.restart()
		if err != nil {
			return err
		}
		postmaster, err := s.postmaster(ctx)
		if err != nil {
			return err
		}
		costs := map[string][]float64{}
		for turn := range 1 + b.sizes.exchanging.turns { // the first turn fills the caches and is not counted
			var cost [3][3]float64 // µs per call, by kind of call and by process: Postgres, the worker, and their sum
			for i := range kinds {
				k := (i + turn) % len(kinds) // each turn starts with another kind
				if err := s.settle(ctx); err != nil {
					return err
				}
				var before []time.Duration
				if err := s.calls(ctx, kinds[k].tool, kinds[k].steps, n, func() (err error) {
					before, err = cpuTimes(postmaster, pid)
					return err
				}); err != nil {
					return err
				}
				after, err := cpuTimes(postmaster, pid)
				if err != nil {
					return err
				}
				for part := range after {
					cost[k][part] = float64((after[part] - before[part]).Microseconds()) / float64(n)
					cost[k][2] += cost[k][part]
				}
			}
			for part, suffix := range []string{"-worker", "-postgres", ""} {
				for name, of := range map[string]float64{"plain-http-cpu": cost[0][part], "exchange-call-cpu": cost[1][part],
					"exchange-cpu": (cost[2][part] - cost[1][part]) / 10} {
					costs[name+suffix] = append(costs[name+suffix], of)
				}
			}
			costs["exchange-cpu-ratio"] = append(costs["exchange-cpu-ratio"], (cost[2][2]-cost[1][2])/10/cost[0][2])
		}
		for _, name := range slices.Sorted(maps.Keys(costs)) {
			unit := "µs"
			if strings.HasSuffix(name, "-ratio") {
				unit = "ratio"
			}
			figures = append(figures, figure{measure: name, unit: unit, value: median(costs[name][1:])})
		}
		return nil
	})
	return figures, unlessNoProc("exchange-cpu", err)
}

// unlessNoProc returns err, unless the measure needs a /proc that does not exist here.
func unlessNoProc(measure string, err error) error {
	if errors.Is(err, errNoProc) {
		say("%s is not measured here: %v", measure, err)
		return nil
	}
	return err
}

// keptSteps measures how long Postgres takes to write a step for a worker (gem.step) and for a service
// (keep_tool_step). Each step has its own transaction, and its commit is measured too. A DO block keeps the plans of
// the statements, as prepared statements do.
func keptSteps(ctx context.Context, b *bench, c contestant) ([]figure, error) {
	s, err := b.lab.stage(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.drop()
	n := b.sizes.exchanging.kept
	if _, err := s.db.Exec(ctx, "select gem.start_worker('bench', 100, 'bench', '1.0.0', '1 day')"); err != nil {
		return nil, err
	}
	if err := insertCalls(ctx, s.db, "bench.answer", newPayload(0, false), 2*n); err != nil {
		return nil, err
	}
	for _, statement := range []string{"create table took (of text, time interval)",
		fmt.Sprintf(`create table claimed as select c.id, row_number() over () as n
			from gem.claim('bench', %d, false) c`, 2*n)} {
		if _, err := s.db.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	if _, err := s.db.Exec(ctx, `do $$
		declare
			one record;
			said text;
			began timestamptz;
		begin
			for one in select array_agg(c.id order by n) as ids from claimed c group by (n - 1) / 2 loop
				said := '{"name": "book", "kind": "tx", "result": {"price": 4200}, "effects": {}}';
				began := clock_timestamp();
				perform gem.step(one.ids[1], 1, 'bench', 'step', said::jsonb, 0, false);
				commit;
				insert into took values ('gem-step', clock_timestamp() - began);
				said := format('{"token": %s, "before": 0, "name": "book", "effects": {}}',
					to_json(gem.exchange_token(one.ids[2], 1, 'bench')));
				commit; -- releases the locks that exchange_token has taken
				began := clock_timestamp();
				perform keep_tool_step(said::jsonb, '{"price": 4200}');
				commit;
				insert into took values ('keep-tool-step', clock_timestamp() - began);
			end loop;
		end $$`); err != nil {
		return nil, err
	}
	var figures []figure
	for _, measure := range []string{"gem-step", "keep-tool-step"} {
		var took []float64
		if err := s.db.QueryRow(ctx, "select array_agg(extract(epoch from time) * 1e6)::float8[] from took where of = $1",
			measure).Scan(&took); err != nil {
			return nil, err
		}
		figures = append(figures, figure{measure: measure, unit: "µs", value: median(took), singles: took})
	}
	return append(figures, figure{measure: "keep-tool-step-ratio", unit: "ratio",
		value: figures[1].value / figures[0].value}), nil
}

// replays lists the services that replay a journal, one for each SDK.
var replays = []struct{ measure, program, file, text string }{
	{"sdk-replay-node", "node", "typescript/service.mjs", `import { durable, serve } from './gem-handlers.js'
const service = serve({ secret: process.env.BENCH_SECRET, tools: { 'bench.durable': durable(async (call, { steps }) => {
  for (let i = 0; i < steps; i++) await call.step('step ' + i, () => 0)
  return 'replayed'
}) } })
console.log('http://127.0.0.1:' + (await service.listen(0)).address().port)
`},
	{"sdk-replay-python", "python3", "python/service.py", `import os
from gem_handlers import durable, serve
@durable
async def replay(call, input):
    for i in range(input["steps"]):
        await call.step(f"step {i}", lambda: 0)
    return "replayed"
server = serve(secret=os.environ["BENCH_SECRET"], tools={"bench.durable": replay}).server(0)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
`}}

// replaysOfSDKs measures the time of a request with a long journal. The handler only replays the journal and returns.
func replaysOfSDKs(ctx context.Context, b *bench, _ contestant) (figures []figure, err error) {
	size := b.sizes.exchanging
	journal := make([]map[string]any, size.entries)
	for i := range journal {
		journal[i] = map[string]any{"name": fmt.Sprint("step ", i), "kind": "step", "ended": i + 1,
			"result": strings.Repeat("x", 1022)} // 1 KB with the quotes
	}
	body := []byte(jsonOf(map[string]any{"gem": 1, "input": map[string]int{"steps": size.entries},
		"call": map[string]any{"id": "01990000-0000-7000-8000-000000000000", "tool": "bench.durable", "attempt": 1,
			"session_id": nil, "created_by": nil},
		"exchange": map[string]any{"number": 2, "left_ms": 60_000, "cancelled": false, "replay": false,
			"may_run": []string{}, "steps": size.entries},
		"journal": journal}))
	root, err := source(ctx)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp(b.lab.scratch, "sdk-")
	if err == nil {
		err = os.CopyFS(folder, os.DirFS(filepath.Join(root, "sdk")))
	}
	if err != nil {
		return nil, err
	}
	for _, r := range replays {
		if _, err := exec.LookPath(r.program); err != nil {
			say("%s is not measured here: %v", r.measure, err)
			continue
		}
		file := filepath.Join(folder, r.file)
		if err := os.WriteFile(file, []byte(r.text), 0o600); err != nil {
			return nil, err
		}
		url, stop, err := startService(ctx, folder, r.program, file)
		if err != nil {
			return nil, err
		}
		const warm = 10
		var took []float64
		for i := range warm + size.replays {
			began := time.Now()
			if err = exchangeWith(ctx, url, body); err != nil {
				break
			}
			if i >= warm {
				took = append(took, milliseconds(time.Since(began)))
			}
		}
		stop()
		if err != nil {
			return nil, err
		}
		figures = append(figures, figure{measure: r.measure, unit: "ms", value: median(took), singles: took})
	}
	return figures, nil
}

// exchangeWith sends a signed request to a service. It returns an error unless the handler has replayed the journal and
// returned.
func exchangeWith(ctx context.Context, url string, body []byte) error {
	id, at := "bench", fmt.Sprint(time.Now().Unix())
	code := hmac.New(sha256.New, serviceSecret)
	fmt.Fprintf(code, "%s.%s.%s", id, at, body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "Webhook-Id": id,
		"Webhook-Timestamp": at, "Webhook-Signature": "v1," + base64.StdEncoding.EncodeToString(code.Sum(nil))} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && !bytes.Contains(answer, []byte(`"replayed"`)) {
		err = fmt.Errorf("%s answered %d: %.300s", url, resp.StatusCode, answer)
	}
	return err
}

// memoryOfParked measures how much memory a worker needs for parked calls. It compares a worker that starts while many
// calls are parked with a worker that starts without parked calls. It also measures by how much the memory of a worker
// grows while this worker parks more calls.
func memoryOfParked(ctx context.Context, b *bench, c contestant) (figures []figure, err error) {
	var memory []float64 // MB after each of the four steps below
	err = b.withService(ctx, c, func(s *behindHTTP) error {
		var pid int
		start := func() (err error) {
			if pid, err = s.restart(); err == nil {
				err = s.calls(ctx, "bench.plain", 0, warmUp, func() error { return nil })
			}
			return err
		}
		park := func() error {
			return s.calls(ctx, "bench.parked", 1, b.sizes.exchanging.parked, func() error { return nil })
		}
		for _, step := range []func() error{start, park, park, start} {
			if err := errors.Join(step(), sleepUntil(ctx, time.Now().Add(b.sizes.settling/2))); err != nil {
				return err
			}
			now, err := residentMemory(pid)
			if err != nil {
				return err
			}
			memory = append(memory, float64(now)/1e6)
		}
		figures = []figure{{measure: "parked-memory-none", unit: "MB", value: memory[0]},
			{measure: "parked-memory", unit: "MB", value: memory[3]},
			{measure: "parked-memory-growth", unit: "MB", value: memory[2] - memory[1]}}
		return nil
	})
	return figures, unlessNoProc("parked-memory", err)
}
