package mcp

import (
	"context"
	"encoding/json"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// rounds is the first version of the protocol in which a server asks through results, and clients state their
// capabilities in each request.
const rounds = "2026-07-28"

// abilities are the capabilities of a client for one request.
type abilities struct {
	tasks bool
	// form and url are the ways to ask its user.
	form, url bool
	// rounds means that a result asks the client, which then repeats its request. Otherwise session, if not nil,
	// accepts our requests.
	rounds  bool
	session *sdk.ServerSession
}

// asked reports whether the client's user can be asked at all.
func (a abilities) asked() bool { return a.form || a.url }

// abilitiesOf reads the capabilities from a request. Clients of earlier versions stated them once, and are asked by
// our requests; over HTTP they get no questions, since they have no session there. extra is the request's, and may be
// nil.
func abilitiesOf(session *sdk.ServerSession, extra *sdk.RequestExtra, meta map[string]any) (a abilities) {
	var said struct {
		Elicitation *elicitation
		Extensions  map[string]any
	}
	if version, _ := meta[sdk.MetaKeyProtocolVersion].(string); version >= rounds {
		a.rounds = true
		if encoded, err := json.Marshal(meta[sdk.MetaKeyClientCapabilities]); err == nil {
			_ = json.Unmarshal(encoded, &said) // the SDK has checked it
		}
		_, a.tasks = said.Extensions[tasksExtension]
	} else if init := session.InitializeParams(); init != nil && init.Capabilities != nil &&
		(extra == nil || extra.Header == nil) {
		if e := init.Capabilities.Elicitation; e != nil {
			a.session, said.Elicitation = session, &elicitation{}
			if e.Form != nil {
				said.Elicitation.Form = &struct{}{}
			}
			if e.URL != nil {
				said.Elicitation.URL = &struct{}{}
			}
		}
	}
	if e := said.Elicitation; e != nil {
		a.url = e.URL != nil
		a.form = e.Form != nil || !a.url // before links existed, all were forms
	}
	return a
}

type elicitation struct{ Form, URL *struct{} }

// taskSlot holds the task that a tools/call becomes: the SDK's tool handlers return only results.
type taskSlot struct{ made *task }

type taskSlotKey struct{}

func withTaskSlot(ctx context.Context, s *taskSlot) context.Context {
	return context.WithValue(ctx, taskSlotKey{}, s)
}

// taskSlotOf returns nil if the request cannot become a task.
func taskSlotOf(ctx context.Context) *taskSlot {
	s, _ := ctx.Value(taskSlotKey{}).(*taskSlot)
	return s
}
