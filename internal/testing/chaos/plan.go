//go:build !windows

package chaos

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// call is a call that a frontend inserts.
type call struct {
	ID        string
	Tool      string
	Task      Task
	ClientKey string
	Priority  int
	Session   string
	Route     string        // route of models that may answer
	Delay     time.Duration // until it may run
	Cancelled bool          // somebody requests its end
	After     time.Duration // time from the insert to that request
}

// key returns the key that the call shares with others of its tool. Only one of them may succeed by running. It returns
// "" for calls without a key.
func (c call) key() string {
	switch c.Tool {
	case writeOnce, charge:
		return c.Task.Key
	case ping:
		return c.ClientKey
	}
	return ""
}

// input returns the input of the call's tool.
func (c call) input() string {
	if c.Tool != chat {
		return encode(c.Task)
	}
	type object = map[string]any
	return encode(object{"messages": []any{object{"role": "user", "content": c.ID}}, "route": c.Route,
		"max_output_tokens": maxOutput})
}

// plan returns the calls to insert.
func plan(seed uint64, calls int) []call {
	r := stream(seed, planStream)
	all := make([]call, calls)
	for i := range all {
		c := call{ID: uuid(r), Tool: weighted(r, tools), Task: Task{Takes: r.IntN(301), Then: weighted(r, endings)}}
		// A handful of nearby calls share a key.
		switch c.Tool {
		case writeOnce, charge:
			c.Task.Key = fmt.Sprintf("key %d", i/40+r.IntN(2))
		case ping:
			if r.IntN(2) == 0 {
				c.ClientKey = fmt.Sprintf("client key %d", i/40)
			}
		case chat:
			c.Task = Task{}
			c.Session, c.Route = fmt.Sprintf("session %d", i/40), []string{"default", "other"}[r.IntN(2)]
		}
		if r.IntN(10) == 0 {
			c.Priority = r.IntN(3) - 1
		}
		if r.IntN(20) == 0 {
			c.Delay = between(r, 0, 2*time.Second)
		}
		if r.IntN(25) == 0 {
			c.Cancelled, c.After = true, between(r, 0, 500*time.Millisecond)
		}
		all[i] = c
	}
	return all
}

// share is one of several choices. Its weight determines how often it is drawn.
type share struct {
	name   string
	weight int
}

var (
	tools = []share{{write, 30}, {writeOnce, 15}, {send, 22}, {charge, 15}, {ping, 15}, {flow, 10}, {chat, 14},
		{unbuilt, 2}, {unknown, 1}}
	endings = []share{{"", 75}, {thenFail, 8}, {thenPanic, 4}, {thenTransient, 13}}
)

func weighted(r *rand.Rand, of []share) string {
	total := 0
	for _, s := range of {
		total += s.weight
	}
	at := r.IntN(total)
	for _, s := range of {
		if at -= s.weight; at < 0 {
			return s.name
		}
	}
	panic("not reached")
}

func uuid(r *rand.Rand) string {
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", r.Uint32(), r.Uint32()&0xffff, r.Uint32()&0xfff,
		r.Uint32()&0x3fff|0x8000, r.Uint64()&0xffffffffffff)
}
