package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// bench is what the experiments share.
type bench struct {
	lab     *lab
	sizes   sizes
	program string // the path of the gem program, once it is built
}

// experiment gives the figures of some measures for each of its contestants.
type experiment struct {
	measures    []string
	contestants []contestant
	once        bool // in the first round alone: it repeats within itself
	run         func(context.Context, *bench, contestant) ([]figure, error)
}

// sizes are how much of everything there is.
type sizes struct {
	backlog     int // calls of throughput
	slowBacklog int // calls of throughput with a slow network

	latency map[int]time.Duration // how long at each rate of inserts a second

	queued, later, ended int // of the claims
	claims               int // a multiple of 3: they are made in three parts

	snapshot        time.Duration
	snapshotBacklog int

	watched     int           // calls that ended, and as many that wait
	inserts     time.Duration // of each kind
	idle        time.Duration
	settling    time.Duration // until a worker counts as idle
	starts      int
	memoryCalls int
}

var fullSizes = sizes{
	backlog: 50_000, slowBacklog: 10_000,
	latency: map[int]time.Duration{1: 20 * time.Second, 10: 20 * time.Second, 100: 10 * time.Second},
	queued:  1_000_000, later: 1_000_000, ended: 5_000_000, claims: 90,
	snapshot: 120 * time.Second, snapshotBacklog: 1_500_000,
	watched: 1_000_000,
	inserts: 10 * time.Second, idle: 30 * time.Second, settling: 12 * time.Second, starts: 5, memoryCalls: 10_000,
}

var quickSizes = sizes{
	backlog: 2500, slowBacklog: 300,
	latency: map[int]time.Duration{1: time.Second, 10: time.Second / 2, 100: time.Second / 4},
	queued:  15_000, later: 15_000, ended: 40_000, claims: 60,
	snapshot: 3 * time.Second, snapshotBacklog: 30_000,
	watched: 5000,
	inserts: 300 * time.Millisecond, idle: time.Second, settling: time.Second / 2, starts: 1, memoryCalls: 1000,
}

var (
	gem          = gemWorker{}
	riverReceipt = riverQueue{receipt: true}
	riverAsIs    = riverQueue{}
)

var experiments = []experiment{
	{
		measures:    []string{"throughput", "allocations", "allocated-bytes"},
		contestants: []contestant{gem, riverReceipt, floor{}},
		run: func(ctx context.Context, b *bench, c contestant) ([]figure, error) {
			r, err := throughput(ctx, b.lab, c, throughputRun{calls: b.sizes.backlog, withRow: true, conns: 20, slots: 100})
			return []figure{
				{measure: "throughput", unit: "calls/s", value: r.perSecond},
				{measure: "allocations", unit: "allocs/call", value: r.allocations},
				{measure: "allocated-bytes", unit: "B/call", value: r.allocatedBytes},
			}, err
		},
	},
	{
		measures:    []string{"throughput-norow", "throughput", "allocations", "allocated-bytes"},
		contestants: []contestant{riverAsIs},
		run: func(ctx context.Context, b *bench, c contestant) ([]figure, error) {
			r, err := throughput(ctx, b.lab, c, throughputRun{calls: b.sizes.backlog, conns: 20, slots: 100})
			return []figure{
				{measure: "throughput", unit: "calls/s", value: r.perSecond}, // it writes no row in either
				{measure: "throughput-norow", unit: "calls/s", value: r.perSecond},
				{measure: "allocations", unit: "allocs/call", value: r.allocations},
				{measure: "allocated-bytes", unit: "B/call", value: r.allocatedBytes},
			}, err
		},
	},
	throughputOf("throughput-norow", func(s sizes) throughputRun {
		return throughputRun{calls: s.backlog, conns: 20, slots: 100}
	}),
	throughputOf("throughput-rtt5", func(s sizes) throughputRun {
		return throughputRun{calls: s.slowBacklog, withRow: true, roundTrip: 5 * time.Millisecond, conns: 10, slots: 100}
	}),
	throughputOf("throughput-norow-rtt5", func(s sizes) throughputRun {
		return throughputRun{calls: s.slowBacklog, roundTrip: 5 * time.Millisecond, conns: 10, slots: 100}
	}),
	latencyOf(false, []pace{{"latency-1", 1}, {"latency-10", 10}, {"latency-100", 100}}, gem, riverReceipt, riverAsIs),
	latencyOf(true, []pace{{"latency-10-poll", 10}}, gem, riverReceipt),
	claimOf("claim-1m", func(s sizes) filling { return filling{queued: s.queued} }),
	claimOf("claim-scheduled-1m", func(s sizes) filling { return filling{queued: fewQueued, later: s.later} }),
	claimOf("claim-behind-5m", func(s sizes) filling { return filling{queued: fewQueued, ended: s.ended} }),
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
		measures:    []string{"idle-statements", "idle-cpu"},
		contestants: []contestant{gem},
		run:         idleWorker,
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
}

func throughputOf(measure string, how func(sizes) throughputRun) experiment {
	return experiment{
		measures:    []string{measure},
		contestants: []contestant{gem, riverReceipt, floor{}},
		run: func(ctx context.Context, b *bench, c contestant) ([]figure, error) {
			r, err := throughput(ctx, b.lab, c, how(b.sizes))
			return []figure{{measure: measure, unit: "calls/s", value: r.perSecond}}, err
		},
	}
}

// measureNames are all measures, in the order of the table.
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

func (e experiment) gives(wanted map[string]bool) bool {
	return slices.ContainsFunc(e.measures, func(m string) bool { return wanted[m] })
}

// choose reads the list of -only: the names of measures, or what they begin with. Empty: all.
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
