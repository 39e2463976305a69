// Command gem is GEM with the tools of a shop instead of the built-in ones.
package main

import (
	"context"
	"embed"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/table"
)

//go:embed tools.registry.json
var registry []byte

//go:embed *.sql
var tables embed.FS

var shop = handlers.Domain{Tools: Shop{}, Tables: tables, Grants: []string{"select, insert on orders"}}

func main() { gem.Main(gem.Program{Domains: []any{shop}, Registry: registry}) }

// Shop is the domain shop: each of its exported methods is a tool.
type Shop struct{}

// NewOrder is the input of shop.order, and Ordered is its output.
type NewOrder struct {
	Item string `json:"item"`
}

type Ordered struct {
	OrderID string `json:"order_id"`
}

// Order is the tool shop.order. The row and the call's receipt appear together, or not at all.
func (Shop) Order(ctx context.Context, tx handlers.Tx, call *handlers.Call, in NewOrder) (Ordered, error) {
	id, err := table.Insert(ctx, tx, call, "orders",
		"insert into orders (item, call_id) values ($1, $2) returning id::text", in.Item, call.ID)
	return Ordered{OrderID: id}, err
}
