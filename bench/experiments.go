package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// bench has the state that the experiments share.
type bench struct {
	lab     *lab
	sizes   sizes
	program string // the path of the gem program, after it is built
}

// experiment gives the figures of some measures for each of its contestants.
type experiment struct {
	measures    []string
	contestants []contestant
	once        bool // runs only in the first round, because it repeats within itself
	run         func(context.Context, *bench, contestant) ([]figure, error)
}

// sizes has the sizes of all experiments.
type sizes struct {
	conns       int // of throughput; 0: the default of each measure
	backlog     int // calls of throughput
	slowBacklog int // calls of throughput with a slow network

	latency map[int]time.Duration // duration for each rate of inserts per second

	queued, later, ended, waiting int // of the claims
	claims                        int // a multiple of 3, because they run in three parts

	snapshot        time.Duration
	snapshotBacklog int

	watched     int           // ended calls, and as many waiting calls
	inserts     time.Duration // of each kind
	idle        time.Duration
	settling    time.Duration // time until a worker counts as idle
	starts      int
	memoryCalls int
	endSeconds  int // of memory-ends
	pruned      int // calls that one run prunes
	lost        int // receipts that a failover loses
	schedules   int // schedules that are due at the same time
	forPlaces   int // calls under a rule that lets five run at the same time
	others      int // calls of another tool during that time

	durable    durable
	chatting   chatting
	extracting extracting
	serving    serving
	looking    looking
	exchanging exchanging
}

var fullSizes = sizes{
	backlog: 50_000, slowBacklog: 10_000,
	latency: map[int]time.Duration{1: 20 * time.Second, 10: 20 * time.Second, 100: 10 * time.Second},
	queued:  1_000_000, later: 1_000_000, ended: 5_000_000, waiting: 1_000_000, claims: 90,
	snapshot: 120 * time.Second, snapshotBacklog: 1_500_000,
	watched: 1_000_000,
	inserts: 10 * time.Second, idle: 30 * time.Second, settling: 12 * time.Second, starts: 5,
	memoryCalls: 10_000, endSeconds: 120,
	pruned:     100_000,
	lost:       200,
	schedules:  10_000,
	forPlaces:  100_000,
	others:     10_000,
	durable:    durable{calls: 100, steps: 200, children: 1000, parked: 300, replayed: 1000},
	chatting:   chatting{chats: 3000, streams: 1000, stalled: 150, beside: 20 * time.Second, cancels: 20},
	extracting: extracting{shards: 489, delay: time.Second / 2},
	serving: serving{paced: 20 * time.Second, clients: 64, calls: 12_800, waits: 1000, held: 20 * time.Second,
		idle: 100, idleTime: 50 * time.Second, starts: 20},
	looking: looking{crowd: crowd{ended: 5_000_000, queued: 1_000_000, later: 1_000_000, waiting: 1_000_000},
		rounds: 30, streams: 100, settling: 5 * time.Second, held: 20 * time.Second, starts: 10},
	exchanging: exchanging{calls: 1000, turns: 5, kept: 5000, entries: 1000, replays: 100, parked: 10_000},
}

var quickSizes = sizes{
	backlog: 1500, slowBacklog: 300,
	latency: map[int]time.Duration{1: time.Second, 10: time.Second / 2, 100: time.Second / 4},
	queued:  15_000, later: 15_000, ended: 40_000, waiting: 15_000, claims: 60,
	snapshot: 3 * time.Second, snapshotBacklog: 30_000,
	watched: 5000,
	inserts: 300 * time.Millisecond, idle: time.Second, settling: time.Second / 2, starts: 1,
	memoryCalls: 1000, endSeconds: 1,
	pruned:     2000,
	lost:       20,
	schedules:  100,
	forPlaces:  200,
	others:     500,
	durable:    durable{calls: 10, steps: 10, children: 50, parked: 5, replayed: 50},
	chatting:   chatting{chats: 100, streams: 50, stalled: 20, beside: time.Second, cancels: 1},
	extracting: extracting{shards: 40, delay: time.Second / 2},
	serving:    serving{paced: time.Second, clients: 8, calls: 160, waits: 50, held: 3 * time.Second, idle: 3, starts: 2},
	looking: looking{crowd: crowd{ended: 20_000, queued: 5_000, later: 5_000, waiting: 5_000}, rounds: 1, streams: 20,
		settling: time.Second, held: time.Second, starts: 1},
	exchanging: exchanging{calls: 50, turns: 1, kept: 200, entries: 1000, replays: 5, parked: 200},
}

var (
	gem          = gemWorker{}
	riverReceipt = riverQueue{receipt: true}
	riverAsIs    = riverQueue{}
)

var experiments = []experiment{
	throughputOf("", throughputRun{withRow: true, conns: 20, slots: 100},
		[]string{"throughput", "cpu", "cpu-postgres", "cpu-worker", "allocations", "allocated-bytes"}, gem, gemSQL,
		riverReceipt, bareFloor),
	{
		measures: []string{"throughput-norow", "cpu-norow", "cpu-postgres-norow", "cpu-worker-norow",
			"throughput", "cpu", "cpu-postgres", "cpu-worker", "allocations", "allocated-bytes"},
		contestants: []contestant{riverAsIs},
		run: func(ctx context.Context, b *bench, c contestant) ([]figure, error) {
			r, err := throughput(ctx, b.lab, c, b.sized(throughputRun{conns: 20, slots: 100}))
			return append(r.figures(""), r.figures("-norow")...), err // river writes no row in either
		},
	},
	throughputOf("-norow", throughputRun{conns: 20, slots: 100},
		[]string{"throughput-norow", "cpu-norow", "cpu-postgres-norow", "cpu-worker-norow"}, gem, gemSQL, riverReceipt,
		bareFloor),
	throughputOf("-rtt5", throughputRun{withRow: true, roundTrip: 5 * time.Millisecond, conns: 10, slots: 100},
		[]string{"throughput-rtt5"}, gem, riverReceipt, bareFloor),
	throughputOf("-norow-rtt5", throughputRun{roundTrip: 5 * time.Millisecond, conns: 10, slots: 100},
		[]string{"throughput-norow-rtt5"}, gem, riverReceipt, bareFloor),
	throughputOf("-rules", throughputRun{withRow: true, conns: 20, slots: 100},
		[]string{"throughput-rules", "cpu-rules", "cpu-postgres-rules", "cpu-worker-rules"}, gem, gemRule, gemLimit,
		gemOneLimit, gemRunning, gemOneRunning),
	throughputOf("-awaited", throughputRun{withRow: true, conns: 20, slots: 100},
		[]string{"throughput-awaited", "cpu-awaited", "cpu-postgres-awaited", "cpu-worker-awaited"}, gem, gemAwaited),
	throughputOf("-watched", throughputRun{withRow: true, conns: 20, slots: 100},
		[]string{"throughput-watched", "cpu-watched", "cpu-postgres-watched", "cpu-worker-watched"}, gem, gemWatched),
	throughputOf("-keyed", throughputRun{withRow: true, conns: 20, slots: 100},
		[]string{"throughput-keyed", "cpu-keyed", "cpu-postgres-keyed", "cpu-worker-keyed"}, gem, gemKeyed, gemKept),
	latencyOf(false, []pace{{"latency-1", 1}, {"latency-10", 10}, {"latency-100", 100}}, gem, riverReceipt, riverAsIs),
	latencyOf(true, []pace{{"latency-10-poll", 10}}, gem, riverReceipt),
	claimOf("claim-1m", func(s sizes) filling { return filling{queued: s.queued} }, gem, riverReceipt),
	claimOf("claim-scheduled-1m", func(s sizes) filling { return filling{queued: fewQueued, later: s.later} }, gem,
		riverReceipt),
	claimOf("claim-behind-5m", func(s sizes) filling { return filling{queued: fewQueued, ended: s.ended} }, gem,
		riverReceipt),
	claimOf("claim-waiting-1m", func(s sizes) filling { return filling{queued: fewQueued, waiting: s.waiting} }, gem),
	underSnapshot("snapshot", true),
	underSnapshot("snapshot-novacuum", false),
	{
		measures:    []string{"inserts-wake", "inserts-nowake", "inserts-noworker"},
		contestants: []contestant{gem},
		run:         inserts,
	},
	{
		measures:    []string{"watch-queue", "watch-outcomes", "watch-hits", "watch-failures", "watch-workers"},
		contestants: []contestant{gem},
		once:        true,
		run:         watchViews,
	},
	{
		measures: []string{"steps", "steps-cpu", "fan-out", "park-resume", "park-resume-p99", "answer", "answer-p99",
			"replay"},
		contestants: []contestant{gem},
		run:         whileWorking(durableCalls),
	},
	{
		measures:    []string{"schedules-look", "schedules-due", "schedules-late-p99"},
		contestants: []contestant{gem},
		once:        true,
		run:         whileWorking(runSchedules),
	},
	{
		measures:    []string{"places-claims", "places-others"},
		contestants: []contestant{gem},
		once:        true,
		run:         placesAtOnce,
	},
	{
		measures:    []string{"steps"},
		contestants: []contestant{riverReceipt},
		run:         whileWorking(chainsOfJobs),
	},
	{
		measures:    []string{"idle-statements", "idle-cpu"},
		contestants: []contestant{gem},
		run:         idleWorker,
	},
	{
		measures:    []string{"failover-lost", "failover-twice", "failover-restored", "failover-claim"},
		contestants: []contestant{gem},
		run:         failover,
	},
	{
		measures:    []string{"prune-file", "prune-objects"},
		contestants: []contestant{gem},
		run:         pruning,
	},
	{
		measures:    []string{"start"},
		contestants: []contestant{gem},
		run:         startOfWorker,
	},
	{
		measures:    []string{"binary"},
		contestants: []contestant{gem},
		once:        true,
		run:         sizeOfProgram,
	},
	{
		measures:    []string{"memory"},
		contestants: []contestant{gem},
		run:         memoryOfWorker,
	},
	{
		measures:    []string{"memory-ends"},
		contestants: []contestant{gem},
		run:         memoryOfEnds,
	},
	{
		measures:    []string{"llm-chats", "llm-cpu-worker", "llm-cpu-postgres"},
		contestants: []contestant{gem},
		run:         chatsAtOnce,
	},
	{
		measures:    []string{"llm-meanwhile-none", "llm-meanwhile-none-p99", "llm-meanwhile", "llm-meanwhile-p99"},
		contestants: []contestant{gem},
		run:         besideChats,
	},
	{
		measures:    []string{"llm-idle-memory", "llm-memory"},
		contestants: []contestant{gem},
		run:         openStreams,
	},
	{
		measures:    []string{"llm-cancel"},
		contestants: []contestant{gem},
		run:         cancelledChats,
	},
	{
		measures: []string{"extract-0ms", "extract-0ms-requests", "extract-0ms-shard", "extract-0ms-cpu-postgres",
			"extract-0ms-cpu-worker",
			"extract-again", "extract-again-requests", "extract-again-cpu-postgres", "extract-again-cpu-worker",
			"extract-changed", "extract-changed-requests", "extract-500ms"},
		contestants: []contestant{gem},
		run:         documents,
	},
	{
		measures:    []string{"mcp-http", "mcp-http-base", "mcp-stdio", "mcp-stdio-base"},
		contestants: []contestant{gem},
		run:         pacedCalls,
	},
	{
		measures:    []string{"mcp-throughput", "mcp-cpu", "mcp-cpu-worker", "mcp-cpu-postgres"},
		contestants: []contestant{gem},
		run:         callsAtOnce,
	},
	{
		measures: []string{"mcp-waits-connections", "mcp-waits-listens", "mcp-wait-memory", "mcp-waits-cpu",
			"mcp-waits-released"},
		contestants: []contestant{gem},
		run:         waitsAtOnce,
	},
	{
		measures: []string{"mcp-idle-connections", "mcp-idle-connections-later", "mcp-idle-listens", "mcp-idle-memory",
			"mcp-idle-memory-own"},
		contestants: []contestant{gem},
		run:         idleServers,
	},
	{
		measures:    []string{"mcp-start"},
		contestants: []contestant{gem},
		run:         startOfServer,
	},
	{
		measures: []string{"dashboard-page", "dashboard-page-p99", "dashboard-filtered", "dashboard-filtered-p99",
			"dashboard-page-size", "dashboard-scans",
			"dashboard-live-reads", "dashboard-live-statements", "dashboard-live-cpu", "dashboard-live-memory",
			"dashboard-left-reads"},
		contestants: []contestant{gem},
		once:        true,
		run:         pagesOfMany,
	},
	{
		measures:    []string{"dashboard-start"},
		contestants: []contestant{gem},
		run:         startOfDashboard,
	},
	{
		measures: []string{"plain-http-cpu", "plain-http-cpu-postgres", "plain-http-cpu-worker",
			"exchange-call-cpu", "exchange-call-cpu-postgres", "exchange-call-cpu-worker",
			"exchange-cpu", "exchange-cpu-postgres", "exchange-cpu-worker", "exchange-cpu-ratio"},
		contestants: []contestant{gem},
		run:         cpuBehindHTTP,
	},
	{
		measures:    []string{"gem-step", "keep-tool-step", "keep-tool-step-ratio"},
		contestants: []contestant{gem},
		run:         keptSteps,
	},
	{
		measures:    []string{"sdk-replay-node", "sdk-replay-python"},
		contestants: []contestant{gem},
		run:         replaysOfSDKs,
	},
	{
		measures:    []string{"parked-memory-none", "parked-memory", "parked-memory-growth"},
		contestants: []contestant{gem},
		run:         memoryOfParked,
	},
}

func throughputOf(suffix string, run throughputRun, measures []string, contestants ...contestant) experiment {
	return experiment{
		measures:    measures,
		contestants: contestants,
		run: func(ctx context.Context, b *bench, c contestant) ([]figure, error) {
			r, err := throughput(ctx, b.lab, c, b.sized(run))
			return r.figures(suffix), err
		},
	}
}

// sized sets the number of calls of a run, and its connections if -conns is set.
func (b *bench) sized(run throughputRun) throughputRun {
	run.calls = b.sizes.backlog
	if run.roundTrip > 0 {
		run.calls = b.sizes.slowBacklog
	}
	run.conns = cmp.Or(b.sizes.conns, run.conns)
	return run
}

// measureNames returns the names of all measures, in the order of the table.
func measureNames() (names []string) {
	for _, e := range experiments {
		for _, m := range e.measures {
			if !slices.Contains(names, m) {
				names = append(names, m)
			}
		}
	}
	return names
}

// contestantNames are all contestants, in the order of the table.
var contestantNames = []string{gem.Name(), gemRule.Name(), gemLimit.Name(), gemOneLimit.Name(),
	gemRunning.Name(), gemOneRunning.Name(), gemKeyed.Name(), gemKept.Name(), gemAwaited.Name(), gemWatched.Name(),
	gemSQL.Name(), riverReceipt.Name(), riverAsIs.Name(),
	bareFloor.Name()}

func (e experiment) gives(wanted map[string]bool) bool {
	return slices.ContainsFunc(e.measures, func(m string) bool { return wanted[m] })
}

// choose parses the list of -only: names of measures, or prefixes of names. By default it selects all.
func choose(list string) (map[string]bool, error) {
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		before := len(wanted)
		for _, m := range measureNames() {
			if m == name || !slices.Contains(measureNames(), name) && strings.HasPrefix(m, name) {
				wanted[m] = true
			}
		}
		if len(wanted) == before && !wanted[name] {
			return nil, fmt.Errorf("-only: no measure is called %q, nor begins so; see -help", name)
		}
	}
	return wanted, nil
}

// chooseContestants parses the list of -contestants. By default it selects all.
func chooseContestants(list string) (map[string]bool, error) {
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(cmp.Or(list, strings.Join(contestantNames, ",")), ",") {
		name = strings.TrimSpace(name)
		if !slices.Contains(contestantNames, name) {
			return nil, fmt.Errorf("-contestants: there is no %q, only %s", name, strings.Join(contestantNames, ", "))
		}
		wanted[name] = true
	}
	return wanted, nil
}
