package worker_test

import (
	"testing"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/handlertest"
)

// BenchmarkCall is a call from its claim to its receipt, on a worker that has enough to do, against a Postgres that does
// not wait for its disk. The module bench measures the same with one that does, beside other systems.
func BenchmarkCall(b *testing.B) {
	for _, name := range []string{"lab.write", "lab.send"} {
		b.Run(name, func(b *testing.B) {
			lab := NewLab()
			env := handlertest.Start(b, handlertest.Setup{
				Registry: labRegistry("1.0.0", tool{name: name}),
				Domains:  func(handlers.DB) []any { return []any{lab} },
				NoWorker: true,
			})
			_, err := env.DB.Exec(b.Context(), "create table lab_rows (id bigint generated always as identity primary key, text text)")
			if err != nil {
				b.Fatal(err)
			}
			_, err = env.DB.Exec(b.Context(), `insert into core_tool_calls (tool_name, input) select $1, '{"text": "x"}' from generate_series(1, $2::int)`, name, b.N)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			env.StartWorker()
			env.Until("all to end", func() bool {
				var left int
				err := env.DB.QueryRow(b.Context(), "select count(*) from core_tool_calls where status in ('queued', 'running')").Scan(&left)
				return err == nil && left == 0
			})
		})
	}
}
