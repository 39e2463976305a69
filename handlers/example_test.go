package handlers_test

import (
	"context"

	"github.com/gemworker/gem/handlers"
)

type (
	Quotes struct {
		model interface {
			Write(ctx context.Context, request string) (string, error)
		}
		mail interface {
			Send(ctx context.Context, to, text string) (messageID string, err error)
		}
	}
	SendQuote struct {
		To      string `json:"to"`
		Request string `json:"request"`
	}
	QuoteSent struct {
		QuoteID   string `json:"quote_id"`
		MessageID string `json:"message_id"`
	}
)

// Send asks a model for a quote, saves it and sends it. When its worker dies, another goes on with the step that had not ended.
func (q Quotes) Send(ctx context.Context, call *handlers.Durable, in SendQuote) (sent QuoteSent, err error) {
	text, err := handlers.Step(ctx, call, "write", func(ctx context.Context) (string, error) {
		return q.model.Write(ctx, in.Request)
	})
	if err != nil {
		return sent, err
	}
	sent.QuoteID, err = handlers.StepTx(ctx, call, "save", func(ctx context.Context, tx handlers.Tx) (id string, err error) {
		err = tx.QueryRow(ctx, "insert into quotes (text, call_id) values ($1, $2) returning id::text", text, call.ID).Scan(&id)
		return id, err
	})
	if err != nil {
		return sent, err
	}
	sent.MessageID, err = handlers.StepOnce(ctx, call, "send", func(ctx context.Context) (string, error) {
		return q.mail.Send(ctx, in.To, text)
	})
	return sent, err
}

// A durable handler is a method as any other.
func ExampleStep() {
	bound, err := handlers.Bind(Quotes{})
	if err != nil {
		panic(err)
	}
	handler, _ := bound.For("quotes.send")
	if !handler.Durable {
		panic("it has steps")
	}
	// Output:
}
