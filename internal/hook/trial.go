package hook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gemworker/gem/rules"
)

// Trial judges the events of a rules test, like [Run], in its own folder and with its own history.
type Trial struct {
	coding rules.Coding
	dir    string
	past   past
}

// NewTrial creates a trial in a new folder. Close removes the folder.
func NewTrial(coding rules.Coding) (*Trial, error) {
	dir, err := os.MkdirTemp("", "gem-rules-test-")
	if err != nil {
		return nil, err
	}
	t := &Trial{coding: coding, dir: dir, past: past{}}
	if t.dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.dir = dir
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Close removes the folder.
func (t *Trial) Close() error { return os.RemoveAll(t.dir) }

// Write writes files into the folder. The map is keyed by relative path.
func (t *Trial) Write(files map[string]string) error {
	for name, contents := range files {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("the file %q is not in the folder of the sequence: name it by its path in it", name)
		}
		path := filepath.Join(t.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(contents), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Judge judges an event in the JSON form that an agent sends. came is the verdict in the words of a rules test: run, or
// the strictest action with the names of its rules. message is the text for the agent. unread is why the
// event could not be read, which gem hook allows.
func (t *Trial) Judge(ctx context.Context, event []byte) (came, message string, unread, err error) {
	a, unread := read(bytes.NewReader(event), t.dir)
	switch {
	case unread != nil:
		return "error", unread.Error(), unread, nil
	case a == nil:
		return "run", "", nil, nil
	case a.dir != t.dir:
		return "", "", nil, errors.New("the event has a cwd: leave it out, the acts of a sequence happen in a folder of " +
			"its own")
	}
	for _, path := range slices.Concat(a.reads, a.edits) {
		if !strings.HasPrefix(path, t.dir+string(filepath.Separator)) {
			return "", "", nil, fmt.Errorf("the event is about %q, which is not in the folder of the sequence: name it by its "+
				"path in it", path)
		}
	}
	said, met := Options{}.answer(ctx, t.past, a, t.coding)
	if said.Specific != nil {
		message = strings.ReplaceAll(said.Specific.Context+said.Specific.Reason, t.dir+string(filepath.Separator), "")
	}
	for _, action := range []rules.Action{rules.Block, rules.Ask, rules.Warn} {
		came = string(action)
		for _, v := range met {
			if v.action == action {
				came += " " + v.rule
			}
		}
		if came != string(action) {
			return came, message, nil, nil
		}
	}
	return "run", message, nil, nil
}

// past is a history in memory, by session.
type past map[string]*memory

type memory struct {
	all  []fact
	told map[string]bool // the recorded acts, by id and event
}

func (p past) facts(_ context.Context, a *act, _ question) ([]fact, error) {
	if p[a.session] == nil {
		return nil, nil
	}
	return p[a.session].all, nil
}

// record ignores an act that was already recorded, as the history in Postgres does.
func (p past) record(_ context.Context, a *act, facts []fact) error {
	m := p[a.session]
	if m == nil {
		m = &memory{told: map[string]bool{}}
		p[a.session] = m
	}
	if id := a.id + " " + string(a.event); a.id == "" || !m.told[id] {
		m.told[id] = true
		m.all = append(m.all, facts...)
	}
	return nil
}
