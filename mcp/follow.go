package mcp

import (
	"context"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/value"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// firstLook and lastLook are the shortest and the longest pause between follow's checks of a waiting call.
const firstLook, lastLook = 50 * time.Millisecond, 2 * time.Second

// follow waits for a call that a client made, or asks about, until it has ended or a deadline passes. It gives the
// answers that come with the request first. If answer is not nil, it answers the request: it asks the client
// something, or slot has the task that the call is now. Without a slot the request cannot become a task. Unless
// patient is set, follow returns as soon as only people can continue the call in that time and the client's user is
// not being asked.
func (d *Server) follow(ctx context.Context, c caller, req *sdk.CallToolRequest, slot *taskSlot, id string,
	until time.Time, patient bool) (s state, answer *sdk.CallToolResult, err error) {
	can := abilitiesOf(req.Session, req.Extra, req.Params.Meta)
	var came replyOutcome
	if len(req.Params.InputResponses) > 0 {
		v, err := d.look(ctx, c, id)
		if err == nil {
			came, err = d.give(ctx, c, v.questions, replies(req.Params.InputResponses))
		}
		if err != nil {
			return s, nil, err
		}
	}
	over := until
	if slot != nil {
		over = earlier(until, time.Now().Add(d.o.TaskAfter))
	}
	asking := &asking{d: d, c: c, session: can.session}
	defer asking.stop()
	watches := can.asked() || !patient // what the call waits for
	waits := false                     // it was waiting: what it waits for may change
	for pause := firstLook; ; {
		next := over
		if waits {
			next = earlier(next, time.Now().Add(pause))
			pause = min(2*pause, lastLook)
		}
		s, err = d.wait(ctx, c, id, next, watches && !waits)
		early := time.Now().Before(next) // it returned before the deadline
		last := !time.Now().Before(over) || d.closing.Err() != nil || ctx.Err() != nil
		switch {
		case err != nil && (early || last) || err == nil && s.ended():
			return s, nil, err
		case ctx.Err() != nil:
			return s, nil, ctx.Err()
		case err != nil:
			continue
		}
		if waits = s.Status == "waiting"; !waits && !last {
			continue
		}
		v, err := d.look(ctx, c, id)
		if err != nil && last {
			return s, nil, nil // the answer does not need its questions
		} else if err != nil {
			continue
		}
		s = v.state
		ask := came.open(v.questions, can, d.o.DashboardURL)
		switch {
		case s.ended():
			return s, nil, nil
		case len(ask) > 0 && can.rounds:
			return s, &sdk.CallToolResult{InputRequests: d.requests(ask, came), RequestState: id}, nil
		case len(ask) > 0:
			asking.begin(ctx, ask)
		}
		asked, declined := d.asked(came, can, v.questions)
		leave := v.onlyPeople && !v.movesBy(over) && !asked && (declined || !patient)
		if slot != nil && (last || leave && !declined) {
			slot.made = d.taskOf(v, can)
			return s, &sdk.CallToolResult{}, nil // withTasks replaces it
		}
		if last || leave {
			asking.leave()
			return s, nil, nil
		}
	}
}

// resumed returns the id of the call that a tools/call continues: requestState holds it. It returns "" if there is
// none. The id is not signed, so it is looked up with the rights of the caller, who cannot see others' calls.
func (d *Server) resumed(ctx context.Context, c caller, r request, req *sdk.CallToolRequest) (id string, err error) {
	id = req.Params.RequestState
	if id == "" {
		return "", nil
	}
	wrong := invalid("requestState does not match this call: repeat the request unchanged, with the requestState of its " +
		"last answer")
	if !value.IsUUID(id) || r.key != "" && r.ID != id {
		return "", wrong
	}
	var same bool
	err = d.as(ctx, c, func(db client.DB) error {
		return db.QueryRow(ctx, `select exists (select from public.core_tool_calls
			where id = $1 and created_by = (select public.gem_caller()) and tool_name = $2 and input = $3::text::jsonb)`, id,
			r.Tool, string(encode(r.Input))).Scan(&same)
	})
	if err == nil && !same {
		err = wrong
	}
	return id, err
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
