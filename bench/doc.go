// Bench compares GEM with other queues on one private Postgres server. Run it with "go run ." in this folder. It starts
// the server on 127.0.0.1 with durability on (fsync and synchronous_commit, with the data on a disk). It creates a
// database for each run and connects to no other server. It needs Go and, like gem dev, the Postgres programs.
//
// Compare figures only within one run. Another machine, another disk or another hour gives different figures.
// Therefore each round runs all contestants in turn, and the ratios in the table are the result.
//
// # Contestants
//
//   - gem: GEM as shipped. It validates input and output, writes every step to the journal, and logs at level info. The
//     receipt and the handler's writes are in one transaction.
//   - gem-rule: gem with a rule that checks the input of each call. The rule stops no call.
//   - gem-limit: gem with a limit whose counter is different for each call. The limit stops no call.
//   - gem-one-limit: gem with a limit that counts all calls together. The limit stops no call.
//   - gem-running: gem with a running rule whose counter is different for each call. A place is always free.
//   - gem-one-running: gem with a running rule that has 100 places for all calls, as many as the worker has slots.
//   - river-receipt: River with the same promise: a job's completion, receipt and row are in one transaction. It
//     validates no input and keeps no journal. It may fetch jobs, and receive notifications of inserts, every
//     millisecond instead of every 100. It has three more connections, because its claims share the pool with its jobs.
//   - river: River with its defaults. It writes completions in batches, and writes neither a receipt nor a row.
//     Therefore its throughput is the same with and without the row.
//   - floor: the fewest statements and round trips that any system with this promise needs, written by hand. It has as
//     many connections, checks nothing, and does not recover from a crash.
//   - gem-sql: the code of floor on GEM's tables, with gem.claim and gem.finish instead of its own two statements. It
//     shows the cost of GEM's SQL without its worker. Each call pays for the round trips that GEM's calls share.
//
// # Measures
//
//	throughput             calls per second on a backlog, from the start of the worker to the last commit. Each call
//	                       writes a row and a receipt. 20 connections, 100 slots.
//	throughput-norow       the same without the row
//	throughput-rtt5        the same with 5 ms added to each round trip, 10 connections, 100 slots
//	throughput-norow-rtt5  the same without the row
//	cpu                    CPU time per call in µs, in the runs of throughput: user and system time of the server and
//	                       of the working process, from before the worker starts until it has stopped, divided by the
//	                       number of calls
//	cpu-postgres           the server's part: all of its processes, including processes that ended during the run
//	cpu-worker             the part of the working process, which is the bench itself for all contestants
//	cpu-norow, cpu-postgres-norow, cpu-worker-norow
//	                       the same in the runs of throughput-norow
//	allocations            allocations per call of throughput in the working process, which is the bench itself for
//	                       all contestants
//	allocated-bytes        the same in bytes
//	throughput-rules       throughput of gem with rules, compared with gem without
//	cpu-rules, cpu-postgres-rules, cpu-worker-rules
//	                       CPU time per call in the runs of throughput-rules
//	throughput-keyed       throughput of gem without keys and with a key of its own for each call; kept has 500,000 kept
//	                       keys of pruned calls
//	cpu-keyed, cpu-postgres-keyed, cpu-worker-keyed
//	                       CPU time per call in the runs of throughput-keyed
//	throughput-awaited     throughput of gem with a listener that is notified of each end, compared with gem without
//	cpu-awaited, cpu-postgres-awaited, cpu-worker-awaited
//	                       CPU time per call in the runs of throughput-awaited
//	throughput-watched     throughput of gem while the overview of its dashboard is open, compared with gem alone
//	cpu-watched, cpu-postgres-watched, cpu-worker-watched
//	                       CPU time per call in the runs of throughput-watched, including the cost of the dashboard
//	latency-1, -10, -100   ms from just before a client sends an insert to the commit of its receipt, at 1, 10 or 100
//	                       inserts per second. The schedule waits for no call. 10 slots, 10 connections, with the row.
//	                       Postgres reports the time of the commit. No figure includes the last flush to the disk.
//	latency-10-poll        the same without notifications. Each contestant polls at its default interval.
//	claim-1k               ms for a claim of 10 calls, including the commit, with 1,000 queued
//	claim-1m               the same with 1,000,000 queued
//	claim-scheduled-1m     the same with 1,000 queued and 1,000,000 scheduled for later
//	claim-behind-5m        the same with 1,000 queued and 5,000,000 ended, with their receipts and journals
//	claim-waiting-1m       the same with 1,000 queued and 1,000,000 that wait for calls and times
//	claim-…-ratio          the ratio to claim-1k, whose claims alternate with these
//	snapshot               throughput in the last ten of 120 seconds divided by that in the first ten, while another
//	                       session holds a snapshot. The first second belongs to the start and is left out.
//	snapshot-novacuum      the same without autovacuum, which can clean up nothing there
//	inserts-wake           inserts per second by 32 clients, with GEM's trigger unchanged and a worker whose slots are
//	                       all busy
//	inserts-nowake         the same with a gem.wake_workers that does nothing
//	inserts-noworker       with GEM's trigger unchanged and no worker
//	watch-…                ms to read a whole view of the schema gem, with 1,000,000 calls that ended and 1,100,000
//	                       that wait
//	steps                  durable steps per second, with 100 concurrent calls of 200 steps each. For River a step is a
//	                       job that inserts the next one in the transaction of its completion.
//	steps-cpu              µs of CPU that Postgres and the worker use for each of these steps
//	fan-out                ends per second of 1,000 children of one call, from the first child's insert to the parent's
//	                       wake-up
//	park-resume, -p99      ms from the wait of a call for a child that does no work to the next claim of that call:
//	                       the median and the 99th percentile of 300 calls, one after another
//	answer, -p99           ms from an answer to the claim of the call whose handler asked for it: the median and the
//	                       99th percentile of 300 calls, one after another. It includes the end of the question.
//	replay                 ms of the attempt that replays 1,000 steps
//	idle-statements        transactions per second of an idle gem worker, each of one statement
//	idle-cpu               CPU of that worker, in percent of a core
//	schedules-look         ms for gem.run_schedules with 10,000 schedules, none of them due
//	schedules-due          s from a time at which 10,000 schedules are due to their last call
//	schedules-late-p99     s from a time at which 100 schedules are due to their calls
//	places-claims          how often a call was claimed at most. There are 100,000 calls, and a rule lets five of them
//	                       run at the same time.
//	places-others          calls per second of another tool while these wait, divided by those before
//	start                  ms from before the worker's exec to its first claim, on a migrated database
//	binary                 MB of the stripped program
//	memory                 peak MB of the worker's process after 10,000 calls to os.create_note
//	memory-ends            MB by which the worker's process grows in two minutes of 1,000 calls to os.health_check per
//	                       second: its memory of ends, kept for a failover
//	llm-chats              calls to llm.chat per second. A provider in the bench's process answers at once. 200 slots and
//	                       10 connections, as for all of llm-….
//	llm-cpu-worker, llm-cpu-postgres
//	                       CPU time of the worker and of the server per such call, in µs
//	llm-meanwhile, -p99    ms from the insert of a leads.create to the commit of its receipt, at 20 per second, while
//	                       150 chats stall: the median and the 99th percentile
//	llm-meanwhile-none, -p99
//	                       the same without chats
//	llm-memory             MB that 1,000 open streams add to llm-idle-memory, the memory of the idle worker
//	llm-cancel             ms from cancel_tool_call to the end of the chat's connection
//	extract-0ms            seconds of an extract.run, from the commit of its insert to that of its receipt. It reads a
//	                       document of 2 MB that was added before: 489 shards of 4,000 characters with 10 items each.
//	                       Two workers of 10 slots, as for all of extract-…. A model in the bench's process answers at
//	                       once, in as many events as real models do.
//	extract-0ms-requests   requests to the model during the run
//	extract-0ms-shard      ms of the run per shard
//	extract-0ms-cpu-postgres, extract-0ms-cpu-worker
//	                       ms of CPU time per shard, of the server and of both workers
//	extract-again, -requests, -cpu-postgres, -cpu-worker
//	                       the same call again
//	extract-changed, -requests
//	                       the same text with one changed paragraph
//	extract-500ms          seconds of extract-0ms with a model that answers after half a second. With 20 slots the
//	                       minimum is 12.5.
//	mcp-http, mcp-stdio    ms of a tools/call to os.health_check over HTTP and over stdio, in turns, ten of each per
//	                       second
//	mcp-http-base, mcp-stdio-base
//	                       the same call in the bench's process, in turns with them: an insert with the rights of a
//	                       user, and the same wait for its end as in gem mcp
//	failover-lost, failover-twice
//	                       200 calls of mode none with effects outside end while their standby receives nothing; then
//	                       the primary is killed and the standby promoted: receipts that stay lost, and effects that
//	                       happen twice
//	failover-restored      seconds from the worker's first contact with the new server to the last restored receipt
//	failover-claim         seconds from that contact to the first claim of a new call
//	prune-file, prune-objects
//	                       calls per second that gem prune removes and writes to a compressed file, and to a store
//	                       on this machine, both synced to disk
//	mcp-throughput         tools/calls per second of 64 clients to one gem mcp --http, each client with a user of its
//	                       own, and one worker of 100 slots
//	mcp-cpu, mcp-cpu-worker, mcp-cpu-postgres
//	                       CPU time per such call in µs: of gem mcp, of the worker and of the server
//	mcp-waits-…            1,000 requests of 25 users that wait for calls scheduled for the same time: the connections
//	                       of gem mcp, how many of them listen, its CPU in percent of a core, and ms from the commit of
//	                       a receipt to its answer
//	mcp-wait-memory        kB that each of these requests adds to an idle gem mcp --http
//	mcp-idle-…             100 servers over stdio after one call each: connections per server at once and 50 s later,
//	                       how many listen, and resident and private MB per server
//	mcp-start              ms from before the exec of gem mcp over stdio to its first answer
//	dashboard-page         ms for a page of gem dashboard as an operator, one request at a time, over 19 kinds in turn.
//	                       The database has 5,000,000 calls that ended within 31 days, and 1,000,000 each that are
//	                       queued, scheduled and waiting. -p99 is over all of the requests.
//	dashboard-filtered     ms for a list of calls by a tool or an error code, which no index finds
//	dashboard-page-size    kB of the compressed overview, without the files that browsers cache
//	dashboard-scans        sequential scans of calls, receipts, journals and requests to models during the requests
//	dashboard-live-…       100 browsers on four pages: transactions per second, statements that read within them (the
//	                       Execute messages of its connections), CPU in percent of a core, resident MB
//	dashboard-left-reads   transactions per second after the browsers have left, without those of the bench
//	dashboard-start        ms from before the exec of gem dashboard to the overview, reached through its link
//	plain-http-cpu         µs of CPU that Postgres and the worker's process use for a call of a tool behind HTTP. The
//	                       calls are inserted before the measurement. The service is a separate process that does no
//	                       work, and its CPU is not counted. The worker has 100 slots. The suffixes -postgres and
//	                       -worker give the two parts, also for the next two measures.
//	exchange-call-cpu      the same for a call of a durable tool with one step. The call takes two requests: the service
//	                       answers the first with the step, and the second with the result.
//	exchange-cpu           the same for one more exchange with one step: the difference between a call with eleven steps
//	                       and a call with one step, divided by ten. It includes sending the longer journal.
//	exchange-cpu-ratio     exchange-cpu divided by plain-http-cpu; the target is 2.0
//	gem-step               µs in Postgres of the transaction with which a worker writes a step, with its commit and
//	                       without the network
//	keep-tool-step         the same for the transaction with which a service writes a step. The two transactions
//	                       alternate in one session.
//	keep-tool-step-ratio   the median of keep-tool-step divided by that of gem-step; the target is 1.5
//	sdk-replay-node, sdk-replay-python
//	                       ms from a signed request with a journal of 1,000 steps of 1 KB to the answer of a handler
//	                       that only replays them. The SDK's own server serves it. The median of 100 requests, one after
//	                       another.
//	parked-memory-none     resident MB of a worker after 50 calls
//	parked-memory          the same for a worker that starts while 20,000 calls of a durable tool behind HTTP are parked
//	parked-memory-growth   MB by which the memory of the worker that parks these calls grows while it parks the second
//	                       half of them. The first half has already grown its heap.
//
// The process measures are of the program itself, built from this tree. The bench reads CPU and memory from /proc.
// Without /proc it reports that it does not measure them, and leaves them out. The server counts the statements of a
// session some seconds late. With -quick the bench does not wait for that, so an idle worker's statements include some
// of its start.
//
// # Two builds side by side
//
// "go run . -against PROGRAM" compares this bench with a bench that was built in another checkout. The two run in
// turns, each round of each on a new server. For each measure it prints both medians and the ratio: the median of the
// ratios of the rounds, with the lowest and the highest. By default it measures throughput and the CPU per call, of gem
// only.
//
//	git worktree add /tmp/base COMMIT
//	cp *.go /tmp/base/bench/
//	(cd /tmp/base/bench && go build -o /tmp/bench-base .)
//	go run . -against /tmp/bench-base -rounds 5
//	git worktree remove --force /tmp/base
//
// Each bench builds the gem program of the checkout in which it was built itself, so keep that checkout. Copy the
// bench's code, so that the same code measures both. gem.go, llm.go, extract.go and mcpserver.go use GEM's Go packages.
// If the other checkout has another API, take gem.go from the last commit whose gem.go fits it:
//
//	git show COMMIT:bench/gem.go > /tmp/base/bench/gem.go
//
// -after FILE runs SQL in GEM's databases after their migration, on this side only. With the same program on both sides
// it shows the effect of a change to the SQL before you write any code:
//
//	go build -o /tmp/bench . && /tmp/bench -against /tmp/bench -after change.sql -contestants gem-sql
//
// Other load affects CPU time less than elapsed time, but it does affect it, because processes share caches. First run
// the same program on both sides: the distance of its ratios from 1 is noise. On a machine with other users, -together
// runs both sides at once, so that both meet the same load. At a load of 15 on two cores the ratios of a program to
// itself were between 0.91 and 1.04 with -together, and between 0.5 and 1.5 in turns.
//
// # The table
//
// The median is over the rounds. For a latency or a claim, the figure of a round is the median of its calls. The spread
// is the lowest and the highest figure of the rounds. Claims run once, in three parts that count as rounds. The p99
// (nearest rank) and the worst are over the single calls of all rounds. With few calls the p99 is the worst. The last
// columns are the median divided by that of river-receipt and by that of floor.
//
// -json FILE writes the same to a file, as a list of objects:
//
//	measure, contestant, unit
//	median, p99             p99 is null if single calls are not timed
//	min, max                over single calls if they are timed, otherwise over the rounds
//	rounds                  the figure of each round
//	series                  for snapshot: calls in each second of the middle round
package main
