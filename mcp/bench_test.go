package mcp

import (
	"testing"

	"github.com/gemworker/gem/client"
)

// BenchmarkToolsCall compares a tools/call over stdio with its parts: an insert with the same rights, and a wait for
// the end with the same wake.
func BenchmarkToolsCall(b *testing.B) {
	o := openShop(b, true)
	a := o.server.agent(b, "ada", nil)
	limits := `update gem.limits set max_calls_per_hour = 1000000, max_bytes_per_hour = 1000000000000`
	if _, err := o.DB.Exec(b.Context(), limits); err != nil {
		b.Fatal(err)
	}
	a.call("shop_order", `{}`)
	b.Run("mcp", func(b *testing.B) {
		for b.Loop() {
			a.call("shop_order", `{}`)
		}
	})
	b.Run("insert and wait", func(b *testing.B) {
		waiter, err := o.server.waits(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			var id string
			err := o.server.as(b.Context(), caller{subject: "ada"}, func(db client.DB) (err error) {
				id, err = client.Enqueue(b.Context(), db, client.NewCall{Tool: "shop.order"})
				return err
			})
			if err == nil {
				err = waiter.Ended(b.Context(), id)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
