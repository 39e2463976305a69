package chromium

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
)

// Shop is a domain with tools that have every kind of ending, in addition to the built-in ones.
type Shop struct {
	slow chan string // receives the id of each call of a slow order when its handler runs
}

func newShop() Shop { return Shop{make(chan string, 100)} }

type order struct {
	Order string `json:"order"`
	Cents int    `json:"cents"`
}

type done struct {
	Text string `json:"text"`
}

// Charge handles a tool of the mode none. An order whose name begins with declined fails. An order whose name begins
// with slow runs until it is cancelled.
func (s Shop) Charge(ctx context.Context, call *handlers.Call, in order) (done, error) {
	switch {
	case len(in.Order) >= 8 && in.Order[:8] == "declined":
		call.Called("payments.example", "POST /charges", 402)
		return done{}, &handlers.Failure{Code: "card_declined",
			Message: "The bank declined the card of order " + in.Order + ".", Details: map[string]any{"cents": in.Cents}}
	case len(in.Order) >= 4 && in.Order[:4] == "slow":
		s.slow <- call.ID
		<-ctx.Done()
		return done{}, ctx.Err()
	}
	call.Called("payments.example", "POST /charges", 201)
	return done{"charged " + in.Order}, nil
}

// Ship is keyed by its order. It fails for orders that begin with late, unless cents is set.
func (Shop) Ship(_ context.Context, call *handlers.Call, in order) (done, error) {
	if len(in.Order) >= 4 && in.Order[:4] == "late" && in.Cents == 0 {
		return done{}, errors.New("the carrier is closed")
	}
	call.Sent("parcel", "carrier.example", "parcel-"+in.Order)
	return done{"shipped " + in.Order}, nil
}

// Pack is one of the calls that Fulfil makes.
func (Shop) Pack(_ context.Context, _ *handlers.Call, in order) (done, error) {
	if in.Order == "glass" {
		return done{}, &handlers.Failure{Code: "broken", Message: "The glass broke."}
	}
	return done{"packed " + in.Order}, nil
}

type delivery struct {
	Door  string `json:"door"`
	Floor int    `json:"floor"`
	Lift  bool   `json:"lift"`
}

// Fulfil is a durable handler with steps, child calls, a question and a pause.
func (Shop) Fulfil(ctx context.Context, d *handlers.Durable, in order) (done, error) {
	if _, err := handlers.Step(ctx, d, "reserve the stock",
		func(context.Context) (int, error) { return 3, nil }); err != nil {
		return done{}, err
	}
	var parcels []*handlers.Child[done]
	for _, item := range []string{"lamp", "glass", "table"} {
		parcels = append(parcels, handlers.Start[done](d, "pack the "+item, "shop.pack", order{Order: item}))
	}
	if err := handlers.All(ctx, parcels...); err != nil {
		return done{}, err
	}
	if _, err := handlers.StepOnce(ctx, d, "print the label",
		func(context.Context) (string, error) { return "label-1", nil }); err != nil {
		return done{}, err
	}
	where, err := handlers.Ask[delivery](d, "where to",
		handlers.Question{Text: "Where does " + in.Order + " go?"}).Wait(ctx)
	if err != nil {
		return done{}, err
	}
	if err := handlers.Sleep(ctx, d, "the carrier comes", 10*time.Millisecond); err != nil {
		return done{}, err
	}
	return done{"brought to " + where.Door}, nil
}

// Anything is the input of Repeat.
type Anything struct {
	Text  string `json:"text"`
	Fails bool   `json:"fails"`
}

// Repeat returns its input, and writes it wherever a tool can write something. Tests use it for untrusted content.
func (Shop) Repeat(_ context.Context, call *handlers.Call, in Anything) (json.RawMessage, error) {
	call.Called(in.Text, in.Text, 200)
	call.Sent(in.Text, in.Text, in.Text)
	call.WroteFile(in.Text)
	call.Wrote(in.Text, handlers.Insert, in.Text)
	if in.Fails {
		return nil, &handlers.Failure{Code: "hostile", Message: in.Text, Details: call.Input}
	}
	return call.Input, nil
}

// shopRegistry returns the built-in registry with the tools of the shop.
func shopRegistry() []byte { return shopRegistryOf("shop-1", "net:http") }

// shopRegistryOf returns a version of the registry in which shop.refund needs a permission.
func shopRegistryOf(version, permission string) []byte {
	type object = map[string]any
	text, whole := object{"type": "string", "minLength": 1}, object{"type": "integer"}
	input := object{"type": "object", "required": []string{"order"}, "properties": object{"order": text, "cents": whole}}
	output := object{"type": "object", "required": []string{"text"},
		"properties": object{"text": object{"type": "string"}}}
	tool := func(name, description string, change object) object {
		t := object{"name": name, "description": description, "input_schema": input, "output_schema": output,
			"permissions": []string{"net:http"},
			"idempotency": object{"mode": "none"}, "timeout_ms": 600_000, "receipt_fields": []string{"result.text"}}
		for field, value := range change {
			t[field] = value
		}
		return t
	}
	anything := object{"type": "object"}
	var r object
	if err := json.Unmarshal(gem.BuiltInRegistry, &r); err != nil {
		panic(err)
	}
	r["version"] = version
	r["tools"] = append(r["tools"].([]any),
		tool("shop.charge", "Charges a card.", nil),
		tool("shop.ship", "Gives a parcel to the carrier, once for each order.",
			object{"idempotency": object{"mode": "keyed", "key_field": "order"}}),
		tool("shop.pack", "Packs an item.", nil),
		tool("shop.fulfil", "Packs an order, asks where it goes, and brings it there.",
			object{"calls": []string{"shop.pack"}, "deadline_ms": 86_400_000}),
		tool("shop.refund", "Pays money back.", object{"permissions": []string{permission}}),
		tool("shop.settle", "Pays money back once somebody has looked at the complaint.",
			object{"calls": []string{"shop.refund"}, "deadline_ms": 86_400_000, "frontends": true}),
		tool("shop.repeat", "Returns what it is given.",
			object{"input_schema": anything, "output_schema": anything, "receipt_fields": []string{"result"}}))
	encoded, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	if _, err := registry.Parse(encoded); err != nil {
		panic(err)
	}
	return encoded
}

// Refund pays money back. A rule requires approval for large refunds.
func (Shop) Refund(_ context.Context, _ *handlers.Call, in order) (done, error) {
	return done{"refunded " + in.Order}, nil
}

// Settle is a durable handler that first asks for an approval itself and then makes the call, about which a rule may
// also ask.
func (Shop) Settle(ctx context.Context, d *handlers.Durable, in order) (done, error) {
	approval := handlers.Approve(d, "approve", handlers.Approval{Tool: "shop.refund", Input: in,
		Text: "Is the complaint about " + in.Order + " justified?", By: []string{"role:boss"}})
	if _, err := approval.Wait(ctx); err != nil {
		return done{}, err
	}
	return handlers.StartApproved[done](d, "refund", approval).Wait(ctx)
}

// shopRules returns rules that require approval for large refunds and warn about charges.
func shopRules() *rules.Set {
	set, err := rules.Parse([]byte(`{"version": "shop-1", "rules": [
		{"name": "large_refunds", "tools": ["shop.refund"], "action": "ask", "when": {"input": {"cents": {"minimum": 10000}}}, "ask": {"of": ["boss"], "within": "20h"}, "say": "Refunds of 100 or more need a second pair of eyes."},
		{"name": "charges", "tools": ["shop.charge"], "action": "warn", "limit": {"max": 1, "within": "1h", "per": ["tool"]}}]}`))
	if err != nil {
		panic(err)
	}
	return set
}
