package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgxpool"
)

// printResults prints the results of a call's steps, and the calls that its handler made, in the order of the
// journal: for an agent, the whole conversation.
func printResults(ctx context.Context, db *pgxpool.Pool, journal []receipts.Event, out io.Writer) error {
	for _, e := range journal {
		data := prose.DataOf(e)
		switch {
		case e.Event == "step" && data.Error.Message != "":
			fmt.Fprintf(out, "\n%s\n", printable(data.Name))
			printLines(out, "failed", fmt.Sprintf("%s: %s", data.Error.Code, data.Error.Message))
		case e.Event == "step" && data.Kind != "version":
			fmt.Fprintf(out, "\n%s\n", printable(data.Name))
			printStep(out, data.Result)
		case e.Event == "returned":
			if err := printChild(ctx, db, data, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// printStep prints the result of a step. For a model's answer, it prints the text and the tools that it called.
func printStep(out io.Writer, result json.RawMessage) {
	var answer struct {
		Parts []struct {
			Type, Text, Name string
			Arguments        json.RawMessage
			Raw              string `json:"arguments_raw"`
		} `json:"parts"`
		Model string `json:"model"`
	}
	if json.Unmarshal(result, &answer) != nil || answer.Parts == nil || answer.Model == "" {
		printLines(out, "result", string(result))
		return
	}
	for _, p := range answer.Parts {
		switch p.Type {
		case "tool_call":
			if p.Raw == "" {
				p.Raw = string(p.Arguments)
			}
			printLines(out, "calls", p.Name+" "+p.Raw)
		case "thinking":
			printLines(out, "thinks", p.Text)
		default:
			printLines(out, "says", p.Text)
		}
	}
}

// printChild prints a finished call, with its input and its receipt's result.
func printChild(ctx context.Context, db *pgxpool.Pool, data prose.EventData, out io.Writer) error {
	if prose.AsksPeople([]string{data.Name}) {
		data.Name = "a question"
	}
	c, err := client.Get(ctx, db, data.CallID)
	var r *receipts.Receipt
	if err == nil {
		r, err = client.Receipt(ctx, db, data.CallID)
	}
	_, pruned := errors.AsType[*client.NotFoundError](err)
	switch {
	case pruned, errors.Is(err, client.ErrNoReceipt):
		fmt.Fprintf(out, "\n%s: %s; its receipt was removed\n", printable(data.Name), data.Status)
		return nil
	case err != nil:
		return err
	}
	fmt.Fprintf(out, "\n%s: %s %s\n", printable(data.Name), cut(printable(c.Tool), 200), r.Status)
	printLines(out, "input", string(c.Input))
	printLines(out, "result", string(r.Result))
	return nil
}

// printLines prints the lines of a text, aligned, after a word.
func printLines(out io.Writer, word, text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		fmt.Fprintf(out, "  %-6s  %s\n", word, printable(strings.TrimRight(line, "\n")))
		word = ""
	}
}
