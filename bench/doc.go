// Bench measures GEM next to others on one private Postgres: go run . in this folder. It starts the server on 127.0.0.1
// with durability on (fsync and synchronous_commit, the data on a disk), gives each run a database of its own, and
// talks to no other server. It needs Go, and the server's programs as gem dev does.
//
// Figures compare only inside one run: on another machine, another disk or another hour all of them are others. So the
// rounds go through all contestants in turn, and what counts is a ratio in the table.
//
// # Contestants
//
//   - gem: as it ships. Input and output validated, every step in the journal, the receipt in one transaction with what
//     the handler wrote, a log at the level info.
//   - gem-rule: gem with a rule that looks at the input of each call. gem-limit: with a limit, whose counter each call
//     has to
//     itself. gem-one-limit: with a limit that counts all calls together. None of them stops a call.
//   - river-receipt: River with the same promise. A job's completion, its receipt and its row are in one transaction.
//     It
//     checks no input and keeps no journal. It may fetch, and be notified of inserts, every millisecond instead of
//     every
//     100,
//     and has three connections more, since its claims share the pool with its jobs.
//   - river: River as it comes. Completions are written in batches, and there is neither receipt nor row, so that its
//     figures of throughput with and without the row are one and the same.
//   - floor: the fewest statements and round trips that any system with this promise must make, by hand, with as many
//     connections and no checks. It survives nothing.
//   - gem-sql: the floor's code with gem.claim and gem.finish in place of its own two statements, on GEM's tables: what
//     GEM's SQL costs without its worker. A call has to itself the round trips that GEM's calls share.
//
// # Measures
//
//	throughput             calls a second on a backlog, from the start of the worker to the last commit; each call writes a
//	                       row and a receipt. 20 connections, 100 slots.
//	throughput-norow       the same without the row
//	throughput-rtt5        with 5 ms added to each round trip, 10 connections, 100 slots
//	throughput-norow-rtt5  the same without the row
//	cpu                    CPU time of a call in µs, in the runs of throughput: user and system time of the server and of the
//	                       process that works, from before the worker starts until it has stopped, divided by the calls
//	cpu-postgres           the server's part: that of all of its processes, including processes that ended meanwhile
//	cpu-worker             the part of the process that works and that, for all contestants, is the bench itself
//	cpu-norow, cpu-postgres-norow, cpu-worker-norow
//	                       the same in the runs of throughput-norow
//	allocations            of the process that works and that, for all of them, is the bench itself, a call of throughput
//	allocated-bytes        the same in bytes
//	throughput-rules       as throughput, of gem with rules next to gem without
//	cpu-rules, cpu-postgres-rules, cpu-worker-rules
//	                       CPU time of a call in the runs of throughput-rules
//	throughput-awaited     as throughput, of gem with a listener that is notified of each end next to gem without
//	cpu-awaited, cpu-postgres-awaited, cpu-worker-awaited
//	                       CPU time of a call in the runs of throughput-awaited
//	throughput-watched     as throughput, of gem while somebody has the overview of its dashboard open next to gem alone
//	cpu-watched, cpu-postgres-watched, cpu-worker-watched
//	                       CPU time of a call in the runs of throughput-watched, with what the dashboard costs
//	latency-1, -10, -100   ms from just before a client sends an insert to the commit of its receipt, at so many inserts a
//	                       second, by a schedule that waits for nothing. 10 slots, 10 connections, with the row. The commit
//	                       is when Postgres says it was: its last flush to the disk is in nobody's figure.
//	latency-10-poll        without notifications; each polls as often as it does by itself
//	claim-1k               ms for a claim of 10 calls, committed, with 1,000 queued
//	claim-1m               with 1,000,000 queued
//	claim-scheduled-1m     with 1,000 queued, and 1,000,000 for later
//	claim-behind-5m        with 1,000 queued, and 5,000,000 that ended, with their receipts and journals
//	claim-waiting-1m       with 1,000 queued, and 1,000,000 that wait for calls and times
//	claim-…-ratio          to claim-1k, whose claims were made in turn with them
//	snapshot               throughput in the last ten of 120 seconds, as a part of that in the first ten after the start's
//	                       own, while another session holds a snapshot
//	snapshot-novacuum      the same with autovacuum kept away, which can clean up nothing there
//	inserts-wake           inserts a second by 32 clients, with GEM's trigger as it is and a worker whose slots are all busy
//	inserts-nowake         with a gem.wake_workers that does nothing
//	inserts-noworker       as it is, with no worker
//	watch-…                ms to read a whole view of the schema gem, with 1,000,000 calls that ended and 1,100,000 that wait
//	steps                  durable steps a second: 100 calls side by side, with 200 each. For River a job is a step, which inserts
//	                       the next one in the transaction of its completion
//	fan-out                ends a second of 1,000 children of one call, from the first that is made to the parent's wake-up
//	park-resume, -p99      ms from when a call waits for a child of no work to when it is claimed again, of 300 one after
//	                       another: the median, and the 99th percentile
//	answer, -p99           ms from an answer to the claim of the call whose handler asked for it, of 300 one after another:
//	                       the question ends first
//	replay                 ms of the attempt that goes through 1,000 steps again
//	idle-statements        a second, of a gem worker that has nothing to do: transactions, of one statement each
//	idle-cpu               of that worker, in percent of a core
//	start                  ms from before the worker's exec to its first claim, on a migrated database
//	binary                 MB of the program, stripped
//	memory                 MB that the worker's process held at most, after 10,000 calls of os.create_note
//	llm-chats              calls of llm.chat a second, whose answers come at once from a provider in the bench's process. 200 slots,
//	                       10 connections, as for all of llm-…
//	llm-cpu-worker         CPU time of the worker for such a call, in µs
//	llm-meanwhile, -p99    ms from the insert of a leads.create to the commit of its receipt, 20 a second, while 150 chats stall;
//	                       the median, and the 99th percentile
//	llm-meanwhile-none, -p99
//	                       the same without chats
//	llm-memory             MB that 1,000 open streams take above llm-idle-memory, that of the idle worker
//	llm-cancel             ms from cancel_tool_call to the end of the chat's connection
//	extract-0ms            seconds of an extract.run, from the commit of its insert to that of its receipt: 489 shards of 4,000
//	                       characters, with 10 items each, a document of 2 MB that was added before. Two workers of 10 slots, as for all of
//	                       extract-…, and a model in the bench's process that answers at once and in as many events as real ones do
//	extract-0ms-requests   requests to the model meanwhile
//	extract-0ms-shard      ms of it for each shard
//	extract-0ms-cpu-postgres, extract-0ms-cpu-worker
//	                       ms of CPU time for each shard, of the server and of both workers
//	extract-again, -requests, -cpu-postgres, -cpu-worker
//	                       the same call again
//	extract-changed, -requests
//	                       the same text with one changed paragraph
//	extract-500ms          seconds of extract-0ms with a model that answers after half a second: with 20 slots at least 12.5
//	mcp-http, mcp-stdio    ms of a tools/call of os.health_check over HTTP and over stdio, ten of each a second, by turns
//	mcp-http-base, mcp-stdio-base
//	                       the same call in the bench's process, by turns with them: an insert with the rights of a user, and a wait
//	                       for its end as gem mcp waits
//	mcp-throughput         tools/calls a second of 64 clients, each a user of its own, to one gem mcp --http, with one worker of 100 slots
//	mcp-cpu, mcp-cpu-worker, mcp-cpu-postgres
//	                       CPU time of such a call in µs: of gem mcp, of the worker and of the server
//	mcp-waits-…            of 1,000 requests of 25 users that wait for calls which are to run at one time: the connections of gem mcp, how
//	                       many of them listen, its CPU in percent of a core, and ms from the commit of a receipt to its answer
//	mcp-wait-memory        kB that each of them takes above an idle gem mcp --http
//	mcp-idle-…             of 100 servers over stdio that have made a call each: connections of each at once and 50 s later,
//	                       how many listen, and MB that each has resident, and has for itself
//	mcp-start              ms from before the exec of gem mcp over stdio to its first answer
//	dashboard-page         ms for a page of gem dashboard, of 19 kinds in turn, one at a time, as an operator: with 5,000,000 calls that ended
//	                       within 31 days, and 1,000,000 each that are queued, scheduled and waiting; -p99 is over all of them
//	dashboard-filtered     ms for a list of calls by a tool or an error code, which no index finds
//	dashboard-page-size    kB of the overview, compressed, without the files that browsers keep
//	dashboard-scans        sequential scans of calls, receipts, journals and requests to models meanwhile
//	dashboard-live-…       with 100 browsers on four pages: transactions a second, the statements that read within them (the messages Execute of
//	                       its connections), CPU in percent of a core, resident MB
//	dashboard-left-reads   transactions a second once they have left; the bench's own are not counted
//	dashboard-start        ms from before the exec of gem dashboard until its link was followed to the overview
//
// The process measures are of the program itself, built from this tree. CPU and memory are read from /proc. Where there
// is none, the bench says that they are not measured, and leaves them out. The server counts what a session does some
// seconds late: with -quick, which does not wait for that, an idle worker's statements are partly its start's.
//
// # Two builds side by side
//
// go run . -against PROGRAM runs the bench that was built in another checkout and this one by turns, a round of each on
// a new server of its own, and prints for each measure both medians and the ratio: the median of the ratios of each
// round, with the least and the greatest. By default it measures throughput and the CPU of a call, of gem alone.
//
//	git worktree add /tmp/base COMMIT
//	cp *.go /tmp/base/bench/
//	(cd /tmp/base/bench && go build -o /tmp/bench-base .)
//	go run . -against /tmp/bench-base -rounds 5
//	git worktree remove --force /tmp/base
//
// Both are measured by the same code, which is why it is copied. gem.go, llm.go and extract.go use GEM's Go packages.
// Where the other checkout has another API, take gem.go from the last commit whose gem.go fits it:
//
//	git show COMMIT:bench/gem.go > /tmp/base/bench/gem.go
//
// -after FILE runs SQL in GEM's databases once they are migrated, and only here. With the same program on both sides it
// shows what a change to the SQL is worth, before any code is written:
//
//	go build -o /tmp/bench . && /tmp/bench -against /tmp/bench -after change.sql -contestants gem-sql
//
// CPU time is less sensitive to other load than elapsed time is, but not free of it: caches are shared. Run the same
// program on both sides first: by how much its ratios differ from 1 is noise. On a machine that others use, -together
// runs both at once, so that both meet the same load. At a load of 15 on two cores the ratios of a program to itself
// were between 0.91 and 1.04 that way, and between 0.5 and 1.5 by turns.
//
// # The table
//
// The median is that of the rounds' figures, where a round's figure of a latency or a claim is its median; the spread
// is the least and the greatest of them. The claims are made once, in three parts, which count as rounds. p99 (the
// nearest rank) and worst are over the single calls of all rounds: with few of them the p99 is the worst. The last
// columns are the median divided by that of river-receipt and of floor.
//
// With -json FILE the same goes to a file, as a list of objects:
//
//	measure, contestant, unit
//	median, p99             p99 is null where no single calls are timed
//	min, max                over single calls where they are timed, else over the rounds
//	rounds                  the figure of each
//	series                  of snapshot: calls in each second of the middle round
package main
