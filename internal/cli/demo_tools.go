package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
)

func (d *demo) hasBuiltInTools() bool {
	for _, name := range []string{"os.health_check", "os.create_note", "os.search_notes", "os.create_task", "leads.create",
		"leads.update_stage", "leads.mark_lost", "comms.send_sms", "quote.generate_pdf"} {
		if _, has := d.registry.Tool(name); !has {
			return false
		}
	}
	return true
}

// builtInTools calls built-in tools, prints their outcomes, and checks them.
func (d *demo) builtInTools(ctx context.Context) error {
	type fields = map[string]any
	mark := d.mark
	phone := "+61 4" + mark[:2] + " " + mark[2:5] + " " + mark[5:]
	title := "Inspection " + mark

	note := &sample{tool: "os.create_note", want: "succeeded",
		input: fields{"domain": "business", "title": title, "content": "Two broken tiles above the gutter."}}
	lead := &sample{tool: "leads.create", want: "succeeded",
		input: fields{"name": "Sam Carter", "phone": phone, "suburb": "Fitzroy", "source": "referral"}}
	again := *lead
	first := []*sample{
		{tool: "os.health_check", want: "succeeded"},
		note,
		lead,
		&again,
		{tool: "os.create_task", want: "succeeded",
			input: fields{"domain": "business", "title": "Call Sam Carter back", "priority": "high"}},
		{tool: "os.create_task", want: "failed (validation_error)", input: fields{"domain": "business"}},
		{tool: "os.make_coffee", want: "failed (unknown_tool)"},
		{tool: "comms.send_sms", want: "not_configured",
			input: fields{"to": phone, "message": "We are on our way.", "context_ref": fields{"type": "lead", "id": "1"}}},
		{tool: "quote.generate_pdf", want: "not_configured", input: fields{"quote_id": "Q-1"}},
	}
	if err := d.round(ctx, fmt.Sprintf("The frontend inserts %d calls, such as:\n  %s;", len(first), note.insert()),
		first...); err != nil {
		return err
	}
	leadID, noteID := field(lead.receipt, "lead_id"), field(note.receipt, "note_id")
	search := &sample{tool: "os.search_notes", want: "succeeded", input: fields{"query": title}}
	if err := d.round(ctx, "It reads the receipts, and uses their results: the lead is "+leadID+".", search,
		&sample{tool: "leads.update_stage", want: "succeeded", input: fields{"lead_id": leadID, "stage": "contacted"}},
		&sample{tool: "leads.mark_lost", want: "failed (execution_error)",
			input: fields{"lead_id": "00000000-0000-4000-8000-000000000000", "reason": "There is no such lead."}},
	); err != nil {
		return err
	}
	if err := d.ask(ctx); err != nil {
		return err
	}
	if err := d.work(ctx, title); err != nil {
		return err
	}
	if err := d.print(); err != nil {
		return err
	}

	var wrong []error
	for _, c := range d.calls {
		if got := outcome(c.receipt); got != c.want {
			wrong = append(wrong, fmt.Errorf("%s should end as %s, and ended as %s", c.tool, c.want, got))
		}
	}
	ran, repeated := lead.receipt, again.receipt
	if ran.ReplayOf != "" { // they ran at the same time, and either may have been first
		ran, repeated = repeated, ran
	}
	if ran.ReplayOf != "" || repeated.ReplayOf != ran.ID || field(repeated, "lead_id") != field(ran, "lead_id") {
		wrong = append(wrong, errors.New("of two calls to leads.create with one phone, one should repeat the receipt of "+
			"the other"))
	}
	if noteID == "" || !strings.Contains(string(search.receipt.Result), noteID) {
		wrong = append(wrong, errors.New("os.search_notes should find the note that os.create_note wrote"))
	}
	if len(wrong) > 0 {
		return fmt.Errorf("the demo failed:\n%w", errors.Join(wrong...))
	}
	look := "  gem demo --stay           the same, with a dashboard in a browser\n"
	if d.stay {
		look = ""
	}
	_, err := fmt.Fprint(d.out, `
Each call has one receipt. The two calls to leads.create have the same phone: one ran, the other repeated its `+`receipt, and there is one lead.

Try next:
`+look+`  gem dev                   a private Postgres and a worker that stay until Ctrl-C
  gem registry list         the tools
  gem --help                all commands
`)
	return err
}

// ask makes a call that asks a person, and answers it, if the registry has such calls.
func (d *demo) ask(ctx context.Context) error {
	question := &sample{tool: "wait.answer", want: "succeeded",
		input: map[string]any{"text": "Shall Sam be called today?"}}
	if _, has := d.registry.Tool(question.tool); !has {
		return nil
	}
	return d.roundWith(ctx, "A call asks a person. It is a row that waits, and occupies no worker, for as long as it "+
		"takes.", func(ctx context.Context, id string) error {
		for {
			open, err := client.OpenQuestions(ctx, d.frontend, 1000)
			if err != nil {
				return refusal(err)
			}
			if slices.ContainsFunc(open, func(q client.Question) bool { return q.ID == id }) {
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Millisecond):
			}
		}
		d.say("it waits. A person, or a frontend, answers it:  gem answer %s 'Yes, at noon'", id)
		return client.Answer(ctx, d.frontend, id, "Yes, at noon", "")
	}, question)
}

// outcome returns the status of a receipt, with the error code of a failed one in brackets.
func outcome(r *receipts.Receipt) string {
	if e, failed := r.Error(); failed {
		return fmt.Sprintf("%s (%s)", r.Status, e.Code)
	}
	return string(r.Status)
}

// field returns a text in the result of a receipt, or an empty text if it is missing.
func field(r *receipts.Receipt, name string) string {
	var result map[string]any
	_ = json.Unmarshal(r.Result, &result)
	text, _ := result[name].(string)
	return text
}

// ownTools calls those tools of another program whose input is known and that reach only Postgres. It calls a keyed
// tool twice: the second call repeats the receipt of the first.
func (d *demo) ownTools(ctx context.Context) error {
	var calls []*sample
	var left []string
	for _, t := range d.registry.Tools() {
		if isQuestion(t.Name) { // it would wait for an answer, and nobody types an approval's input
			continue
		}
		c, known := sampleOf(t)
		if !known || slices.ContainsFunc(t.Permissions, func(p string) bool { return p != "read:db" && p != "write:db" }) {
			left = append(left, "  "+c.command())
			continue
		}
		calls = append(calls, c)
		if t.Idempotency.Mode == registry.Keyed {
			again := *c
			calls = append(calls, &again)
		}
	}
	if len(calls) > 0 {
		intro := fmt.Sprintf("The frontend inserts %s, such as:\n  %s;", count(len(calls), "call"), calls[0].insert())
		if err := d.round(ctx, intro, calls...); err != nil {
			return err
		}
		if err := d.print(); err != nil {
			return err
		}
		fmt.Fprintln(d.out, "\nEach call has one receipt.")
	}
	if len(left) > 0 {
		fmt.Fprintf(d.out, "\nNot called, because the input is unknown or the tool may reach more than Postgres. Try it "+
			"with gem dev:\n%s\n",
			strings.Join(left, "\n"))
	}
	return nil
}
