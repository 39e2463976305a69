// Package hook is the hook of a coding agent. It judges the agent's acts by the coding rules of a rules file.
//
// Before an act it reads the history of the session and prints the verdict of the rules. After an act it records facts:
// files that were read and edited, and tests that ran and failed. Input that it cannot read, and a history that it
// cannot query, never stop the agent.
package hook

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/gemworker/gem/rules"
)

// Options are the options of a hook.
type Options struct {
	// Source is the kind of agent. Sessions of different kinds are separate.
	Source string
	// Coding loads the rules. The hook calls it only for events that the rules are about.
	Coding func() (rules.Coding, error)
	// DatabaseURL is the database of the history. If it is empty, the history is empty, too.
	DatabaseURL string
	// Timeout limits the time to read the history from Postgres. Recording facts may take ten times as long.
	Timeout time.Duration
	// Dir is the absolute path of the agent's folder, for events without one.
	Dir string
	// Reason describes why a statement failed. By default the hook uses the error itself.
	Reason func(error) error
}

// Run reads an event and returns the hook's output, which may be empty. It returns an error if it cannot read the
// event, which is then allowed.
func Run(ctx context.Context, o Options, stdin io.Reader) (printed []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // another exit code would stop the agent
			printed, err = nil, fmt.Errorf("a fault of gem hook itself: %v", p)
		}
	}()
	a, err := read(stdin, o.Dir)
	if a == nil || err != nil {
		return nil, err
	}
	coding, err := o.Coding()
	if err != nil {
		if a.event != before {
			return nil, nil // the error was reported before the act
		}
		return answer{Message: short(fmt.Sprintf("gem hook judges nothing: %v", err), maxMessage)}.json(), nil
	}
	if len(coding) == 0 {
		return nil, nil
	}
	answer, _ := o.answer(ctx, store{url: o.DatabaseURL, source: o.Source, within: o.Timeout}, a, coding)
	return answer.json(), nil
}

// sessions stores the facts of sessions.
type sessions interface {
	// facts returns the facts of the act's session that a question needs.
	facts(ctx context.Context, a *act, q question) ([]fact, error)
	record(ctx context.Context, a *act, facts []fact) error
}

// answer records an act that has ended, and judges an act that is about to begin.
func (o Options) answer(ctx context.Context, h sessions, a *act, coding rules.Coding) (says answer, met []verdict) {
	if a.event != before {
		facts := a.facts()
		if len(facts) == 0 {
			return answer{}, nil
		}
		if err := h.record(ctx, a, facts); err != nil {
			return answer{Message: short(fmt.Sprintf("gem hook did not record this act, and may judge later ones wrongly: %v",
				o.reason(err)), maxMessage)}, nil
		}
		if a.unread {
			return answer{Message: "gem hook could not read all of this shell command. " +
				"Tests that its rest ran are not recorded, and later acts may be judged wrongly"}, nil
		}
		return answer{}, nil
	}
	q := a.question(coding)
	names := q.applying(coding)
	if len(names) == 0 {
		return answer{}, nil
	}
	facts, err := h.facts(ctx, a, q)
	if err != nil {
		return answerUnknown(coding, names, o.reason(err).Error()), nil
	}
	met, unsure := judge(coding, q, facts)
	why := "the session did more than can be read"
	if q.unread {
		why = "a part of the shell command cannot be read"
	}
	return answerTo(met).and(coding, unsure, why), met
}

func (o Options) reason(err error) error {
	if o.Reason == nil {
		return err
	}
	return o.Reason(err)
}
