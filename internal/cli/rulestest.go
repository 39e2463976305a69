package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gemworker/gem/defects"
	"github.com/gemworker/gem/internal/hook"
	"github.com/gemworker/gem/rules"
	"github.com/spf13/cobra"
)

func rulesTestCommand(p *Program) *cobra.Command {
	return &cobra.Command{
		Use:   "test FILE...",
		Short: "Play sequences of calls, and compare the outcomes with those in a file",
		Long: `
A FILE names its rules, or holds them, and has sequences of steps:

  {"rules": "rules.json", "sequences": [{"name": "one SMS a day", "steps": [
    {"call": {"tool": "comms.send_sms", "input": {"to": "+1"}}, "expect": "run"},
    {"at": "10s", "call": {"tool": "comms.send_sms", "input": {"to": "+1"}},
     "expect": "block sms_once_a_day"}]}]}

A call has a tool and may have id, input, session, caller, signed_in and child.
expect is its first outcome: run, or warn, block, ask, wait or error with the
names of rules, and for wait the time, as in "wait mail_pace 30s". question is
the question that people are asked, such as "Refund 250 for booking b9?". then
is its final outcome: run, denied big_refund, expired big_refund. A call that
runs takes no time and succeeds, unless takes and end differ, as in "takes":
"5s", "end": "timeout"; result and effects are for rules that test them. People
answer with "answer": "approved" or "denied" in the step of the call, or in a
later one: {"at": "1h", "of": ID, "answer": "approved"}.

For the rules of "coding" a step has hook, an event as gem hook reads it,
without cwd: {"hook": {"hook_event_name": "PreToolUse", "session_id": "s",
"tool_name": "Edit", "tool_input": {"file_path": "a.go"}}, "expect": "warn
no_edit_unread"}. "files": {"a.go": "package a"} exist from that step on. An
event that cannot be read is an error, which gem hook allows.

It prints a line for each sequence, with the first step that differs. The exit
code is 0 if no step differs, otherwise 1. It needs no database. "registry" in a
file names another registry than a worker would load here.`,
		Example: "  gem rules test rules.test.json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("it takes at least one file")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, files []string) error {
			var faults []error
			differ := false
			for _, file := range files {
				all, err := p.playRules(file)
				if err != nil {
					faults = append(faults, err)
				}
				for _, played := range all {
					differ = differ || played.Differs != nil
					if err := printPlayed(cmd.OutOrStdout(), file, played, len(files) > 1); err != nil {
						return err
					}
				}
			}
			if len(faults) == 0 && differ {
				return exitError{code: exitFailed}
			}
			return errors.Join(faults...)
		},
	}
}

// playRules plays the sequences of a file, whose rules must fit the registry.
func (p *Program) playRules(file string) ([]rules.SequenceResult, error) {
	s, err := rules.ReadScenario(file)
	if err != nil {
		return nil, err
	}
	r := s.Registry
	if r == nil {
		if r, _, err = p.chosenRegistry(nil); err != nil {
			return nil, err
		}
	}
	if found, _ := s.Set.Check(r); len(found) > 0 {
		return nil, fmt.Errorf("%s: the rules do not fit the registry:\n%w", file, &defects.InvalidError{Defects: found})
	}
	s.Hook = func(coding rules.Coding) (rules.Hook, error) { return hook.NewTrial(coding) }
	all, err := s.Play(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

func printPlayed(w io.Writer, file string, played rules.SequenceResult, several bool) error {
	d := played.Differs
	switch {
	case d == nil && several:
		_, err := fmt.Fprintf(w, "ok: %s: %s\n", file, played.Name)
		return err
	case d == nil:
		_, err := fmt.Fprintln(w, "ok:", played.Name)
		return err
	}
	step := fmt.Sprintf("step %d", d.Step)
	if d.Tool != "" {
		step += " (" + d.Tool + ")"
	}
	text := fmt.Sprintf("differs: %s: %s: %s: want %s, got %s", file, played.Name, step, d.Want, d.Got)
	switch d.Field {
	case "question":
		text = fmt.Sprintf("differs: %s: %s: %s: want the question %q, got %q", file, played.Name, step, d.Want, d.Got)
	case "then":
		text = fmt.Sprintf("differs: %s: %s: %s: want %s in the end, got %s", file, played.Name, step, d.Want, d.Got)
	}
	if d.Message != "" {
		text += "\n  " + strings.ReplaceAll(d.Message, "\n", "\n  ")
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
