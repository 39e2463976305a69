// Package hook judges what coding agents do by the rules of a rules file's coding, as a hook of the agent.
//
// Before an act it asks the history of the session, and prints what the rules say; after it, it records facts: which
// files were read and edited, and which tests ran and failed. What it cannot read or ask stops nobody.
package hook

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/gemworker/gem/rules"
)

// Options are what a hook runs with.
type Options struct {
	// Source is the kind of agent: sessions of two kinds have nothing in common.
	Source string
	// Coding loads the rules. It is only called for an event that they are about.
	Coding func() (rules.Coding, error)
	// DatabaseURL leads to the history; empty: there is none.
	DatabaseURL string
	// Timeout is how long Postgres may take to tell the history. To record facts it has ten times as long.
	Timeout time.Duration
	// Dir is where the agent works if it does not say so: an absolute path.
	Dir string
	// Reason says in words why a statement failed; nil: as the error does.
	Reason func(error) error
}

// Run reads an event and returns what the hook prints, which may be nothing. Its error is about the event, which is
// then let through.
func Run(ctx context.Context, o Options, stdin io.Reader) (printed []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // an exit code of its own would stop the agent
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
			return nil, nil // it was said before the act
		}
		return answer{Message: short(fmt.Sprintf("gem hook judges nothing: %v", err), maxMessage)}.json(), nil
	}
	if len(coding) == 0 {
		return nil, nil
	}
	answer, _ := o.answer(ctx, store{url: o.DatabaseURL, source: o.Source, within: o.Timeout}, a, coding)
	return answer.json(), nil
}

// sessions is what happened in them.
type sessions interface {
	// facts are those of the session of an act, as far as a question needs them.
	facts(ctx context.Context, a *act, q question) ([]fact, error)
	record(ctx context.Context, a *act, facts []fact) error
}

// answer records an act that has ended, and judges one that is about to begin.
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
