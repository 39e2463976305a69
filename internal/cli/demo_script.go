package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/gemworker/gem/receipts"
)

// hasScriptsTools reports whether the program has the built-in tools that the script calls.
func (d *demo) hasScriptsTools() bool {
	for _, name := range []string{"os.health_check", "os.create_note", "os.search_notes", "os.create_task", "leads.create", "leads.update_stage",
		"leads.mark_lost", "comms.send_sms", "quote.generate_pdf"} {
		if _, has := d.registry.Tool(name); !has {
			return false
		}
	}
	return true
}

// script calls the built-in tools, prints what came of them, and checks it.
func (d *demo) script(ctx context.Context) error {
	type fields = map[string]any
	mark := fmt.Sprintf("%08d", rand.IntN(1e8)) // no lead and no note that is there already has it
	phone := "+61 4" + mark[:2] + " " + mark[2:5] + " " + mark[5:]
	title := "Inspection " + mark
	lead := fields{"name": "Sam Carter", "phone": phone, "suburb": "Fitzroy", "source": "referral"}

	first := []*demoCall{
		{tool: "os.health_check", want: receipts.Succeeded},
		{tool: "os.create_note", want: receipts.Succeeded,
			input: fields{"domain": "business", "title": title, "content": "Two broken tiles above the gutter."}},
		{tool: "leads.create", want: receipts.Succeeded, input: lead},
		{tool: "leads.create", want: receipts.Succeeded, input: lead},
		{tool: "os.create_task", want: receipts.Succeeded,
			input: fields{"domain": "business", "title": "Call Sam Carter back", "priority": "high"}},
		{tool: "os.create_task", want: receipts.Failed, code: receipts.ValidationError, input: fields{"domain": "business"}},
		{tool: "os.make_coffee", want: receipts.Failed, code: receipts.UnknownTool},
		{tool: "comms.send_sms", want: receipts.NotConfigured,
			input: fields{"to": phone, "message": "We are on our way.", "context_ref": fields{"type": "lead", "id": "1"}}},
		{tool: "quote.generate_pdf", want: receipts.NotConfigured, input: fields{"quote_id": "Q-1"}},
	}
	fmt.Fprintf(d.progress, "\nThe frontend inserts %d calls, such as:\n  %s;\n\n", len(first), readableInsert(first[1]))
	if err := d.round(ctx, receiptsWithin, first); err != nil {
		return err
	}
	note, leads := first[1], first[2:4]
	leadID := field(leads[0].receipt, "lead_id")
	fmt.Fprintf(d.progress, "\nIt reads the receipts, and goes on with what they say: the lead is %s.\n\n", leadID)
	second := []*demoCall{
		{tool: "leads.update_stage", want: receipts.Succeeded, input: fields{"lead_id": leadID, "stage": "contacted"}},
		{tool: "os.search_notes", want: receipts.Succeeded, input: fields{"query": title}},
		{tool: "leads.mark_lost", want: receipts.Failed, code: receipts.ExecutionError,
			input: fields{"lead_id": "00000000-0000-4000-8000-000000000000", "reason": "There is no such lead."}},
	}
	if err := d.round(ctx, receiptsWithin, second); err != nil {
		return err
	}
	if err := d.print(); err != nil {
		return err
	}
	if err := errors.Join(d.endedAsTheyShould(), d.oneLead(ctx, leads, phone), found(second[1], note)); err != nil {
		return fmt.Errorf("not everything is as promised:\n%w", err)
	}
	_, err := fmt.Fprint(d.out, `
Each call has one receipt. The second leads.create has the phone of the first: it repeated its receipt, and there is one lead.

Try next:
  gem dev                   a private Postgres and a worker that stay until Ctrl-C
  gem registry list         the tools
  gem --help                all commands
`)
	return err
}

// readableInsert is the statement of a call as a person would write it.
func readableInsert(c *demoCall) string {
	return fmt.Sprintf("insert into core_tool_calls (tool_name, input) values ('%s', '%s')", c.tool, strings.ReplaceAll(c.json(), "'", "''"))
}

// endedAsTheyShould compares each receipt with what was promised.
func (d *demo) endedAsTheyShould() error {
	var wrong []error
	for _, c := range d.calls {
		e, _ := c.receipt.Error()
		if c.receipt.Status != c.want || e.Code != c.code {
			wrong = append(wrong, fmt.Errorf("%s should end as %s, and ended as %s", c.tool, outcome(c.want, c.code), outcome(c.receipt.Status, e.Code)))
		}
	}
	return errors.Join(wrong...)
}

func outcome(s receipts.Status, code receipts.Code) string {
	if code == "" {
		return string(s)
	}
	return fmt.Sprintf("%s (%s)", s, code)
}

// oneLead checks that two calls with one phone made one lead: one ran, the other repeats its receipt.
func (d *demo) oneLead(ctx context.Context, calls []*demoCall, phone string) error {
	ran, repeated := calls[0].receipt, calls[1].receipt
	if ran.ReplayOf != "" { // they ran at the same time, and either may have come first
		ran, repeated = repeated, ran
	}
	if ran.ReplayOf != "" || repeated.ReplayOf != ran.ID || field(ran, "lead_id") != field(repeated, "lead_id") {
		return errors.New("of two calls of leads.create with one phone, one should repeat the receipt of the other")
	}
	var leads int
	if err := d.frontend.QueryRow(ctx, "select count(*) from leads where phone = $1", phone).Scan(&leads); err != nil {
		return refusal(err)
	}
	if leads != 1 {
		return fmt.Errorf("one phone should make one lead, and made %d", leads)
	}
	return nil
}

// found checks that the search found the note that a call before it wrote.
func found(search, note *demoCall) error {
	if id := field(note.receipt, "note_id"); id == "" || !strings.Contains(string(search.receipt.Result), id) {
		return errors.New("os.search_notes should find the note that os.create_note wrote")
	}
	return nil
}

// field is a text in the result of a receipt; empty when there is none.
func field(r *receipts.Receipt, name string) string {
	var result map[string]any
	_ = json.Unmarshal(r.Result, &result)
	text, _ := result[name].(string)
	return text
}
