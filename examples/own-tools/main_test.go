package main

import (
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
)

func TestAnOrderIsKept(t *testing.T) {
	t.Parallel()
	gem := handlertest.Start(t, handlertest.Options{Domains: []any{shop}, Registry: registry})
	ordered, receipt := handlertest.Do[Ordered](gem, "shop.order", `{"item": "a lamp"}`)
	if got := handlertest.Effects(t, receipt); got != "insert orders" {
		t.Errorf("effects: %s", got)
	}
	var item string
	err := gem.DB.QueryRow(t.Context(), "select item from orders where id = $1", ordered.OrderID).Scan(&item)
	if err != nil || item != "a lamp" {
		t.Errorf("the order is of %q, %v", item, err)
	}
}
