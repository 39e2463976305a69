package handlers_test

import (
	"context"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
)

type (
	Quotes struct {
		model interface {
			Write(ctx context.Context, request string) (string, error)
		}
		phone interface {
			Ring(ctx context.Context, number string) error
		}
	}
	SendQuote struct {
		To      string `json:"to"`
		Request string `json:"request"`
	}
	QuoteSent struct {
		QuoteID  string `json:"quote_id"`
		Replied  bool   `json:"replied"`
		Reminded bool   `json:"reminded"`
	}
	Mail struct {
		To      string `json:"to"`
		Subject string `json:"subject"`
		Body    string `json:"body"`
	}
	MailSent struct{}
)

// Send asks a model for a quote, saves it, sends it once someone has approved that, and rings after a week if there was
// no reply. If its worker dies, another one continues where it was.
func (q Quotes) Send(ctx context.Context, call *handlers.Durable, in SendQuote) (sent QuoteSent, err error) {
	text, err := handlers.Step(ctx, call, "write", func(ctx context.Context) (string, error) {
		return q.model.Write(ctx, in.Request)
	})
	if err != nil {
		return sent, err
	}
	sent.QuoteID, err = handlers.StepTx(ctx, call, "save",
		func(ctx context.Context, tx handlers.Tx) (id string, err error) {
			err = tx.QueryRow(ctx, "insert into quotes (text, call_id) values ($1, $2) returning id::text", text,
				call.ID).Scan(&id)
			call.Wrote("quotes", "insert", id) // lists the row on the receipt
			return id, err
		})
	if err != nil {
		return sent, err
	}
	mail := Mail{To: in.To, Subject: "Your quote", Body: text}
	approval := handlers.Approve(call, "may it be sent",
		handlers.Approval{Tool: "comms.send_email", Input: mail, By: []string{"role:sales"}})
	if _, err := approval.Wait(ctx); err != nil {
		return sent, err
	}
	// not_allowed if it was denied
	if _, err := handlers.StartApproved[MailSent](call, "mail", approval).Wait(ctx); err != nil {
		return sent, err
	}
	if err := handlers.Sleep(ctx, call, "a week", 7*24*time.Hour); err != nil {
		return sent, err
	}
	sent.Replied, err = handlers.Ask[bool](call, "replied",
		handlers.Question{Text: "Has " + in.To + " replied?"}).Wait(ctx)
	if err != nil || sent.Replied {
		return sent, err
	}
	sent.Reminded, err = handlers.StepOnce(ctx, call, "remind", func(ctx context.Context) (bool, error) {
		return true, q.phone.Ring(ctx, in.To)
	})
	return sent, err
}

type (
	Offers struct{}
	Item   struct {
		Item string `json:"item"`
	}
	Price struct {
		Cents int `json:"cents"`
	}
	Payment struct {
		Cents int `json:"cents"`
	}
	Offer struct {
		Payment Payment `json:"payment"`
		Prices  []int   `json:"prices"`
	}
)

// Make asks for two prices at the same time, and waits until the offer is paid, is declined, or has been open for two
// weeks.
func (Offers) Make(ctx context.Context, call *handlers.Durable, _ Item) (offer Offer, err error) {
	roof := handlers.Start[Price](call, "roof", "suppliers.price", Item{"roof"}) // calls a tool
	door := handlers.Start[Price](call, "door", "suppliers.price", Item{"door"})
	if err := handlers.All(ctx, roof, door); err != nil { // now roof.Wait and door.Wait return at once
		return offer, err
	}
	paid := handlers.Receive[Payment](call, "paid").Within(14 * 24 * time.Hour)
	declined := handlers.Ask[string](call, "declined", handlers.Question{Text: "If you decline, say why."})
	if first, err := handlers.First(ctx, paid, declined); err != nil || first == 1 {
		return offer, err
	}
	offer.Payment, err = paid.Wait(ctx) // handlers.ErrTimeout after two weeks
	return offer, err
}

// Compare asks for many prices. Calls that began when it asked for one continue with one.
func (Offers) Compare(ctx context.Context, call *handlers.Durable, _ Item) (offer Offer, err error) {
	manyPrices := func(context.Context) ([]int, error) { return []int{1, 2}, nil }
	onePrice := func(context.Context) ([]int, error) { return []int{1}, nil }
	var prices []int
	if handlers.Version(call, "many prices", 1) >= 1 {
		prices, err = handlers.Step(ctx, call, "prices", manyPrices)
	} else { // the call passed here before the change
		prices, err = handlers.Step(ctx, call, "price", onePrice)
	}
	offer.Prices = prices
	return offer, err
}

// A durable handler is a method as any other.
func ExampleStep() {
	bound, err := binding.Bind(Quotes{})
	if err != nil {
		panic(err)
	}
	handler, _ := bound.For("quotes.send")
	if !handler.Durable {
		panic("it has steps")
	}
	// Output:
}
