package mcp

import (
	"context"
	"encoding/json"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// rounds is the first version of the protocol in which a server asks by its results, and clients say with each request what they can do.
const rounds = "2026-07-28"

// abilities are what a client can do for one request of its own.
type abilities struct {
	tasks bool
	// form and url are the ways in which its user can be asked.
	form, url bool
	// rounds: it is asked by a result, and makes its request again. Otherwise session, where it is not nil, takes requests of ours.
	rounds  bool
	session *sdk.ServerSession
}

// asked reports whether the client's user can be asked anything at all.
func (a abilities) asked() bool { return a.form || a.url }

// abilitiesOf reads them from a request. Clients of earlier versions said once what they can do, and are asked by requests of ours. Over HTTP they get none,
// since they have no session there. extra is that of the request, and may be nil.
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
	} else if init := session.InitializeParams(); init != nil && init.Capabilities != nil && (extra == nil || extra.Header == nil) {
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
		a.form = e.Form != nil || !a.url // before there were links, all were forms
	}
	return a
}

type elicitation struct{ Form, URL *struct{} }

// taskSlot takes the task that a tools/call becomes: the SDK's handlers of tools return nothing but results.
type taskSlot struct{ made *task }

type taskSlotKey struct{}

func withTaskSlot(ctx context.Context, s *taskSlot) context.Context {
	return context.WithValue(ctx, taskSlotKey{}, s)
}

// taskSlotOf returns nil where the request can become no task.
func taskSlotOf(ctx context.Context) *taskSlot {
	s, _ := ctx.Value(taskSlotKey{}).(*taskSlot)
	return s
}
