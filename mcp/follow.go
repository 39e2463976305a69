package mcp

import (
	"context"
	"time"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/value"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// firstLook and lastLook bound the pauses between follow's checks of what a call waits for.
const firstLook, lastLook = 50 * time.Millisecond, 2 * time.Second

// follow waits for a call that a client made, or asks about, until it has ended and at the latest until a time. Answers that come with the request are
// given first. Where answer is not nil, it is the answer to the request: it asks the client something, or slot has the task that the call is now.
// Without a slot the request cannot become a task. Unless it is patient, it returns as soon as only people can continue the call, and the client's user is
// not being asked.
func (d *Door) follow(ctx context.Context, c caller, req *sdk.CallToolRequest, slot *taskSlot, id string, until time.Time, patient bool) (s state, answer *sdk.CallToolResult, err error) {
	can := abilitiesOf(req.Session, req.Extra, req.Params.Meta)
	var came replied
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
	watches := can.asked() || !patient // for what the call waits
	waits := false                     // it was seen to wait: what it waits for may change
	for pause := firstLook; ; {
		next := over
		if waits {
			next = earlier(next, time.Now().Add(pause))
			pause = min(2*pause, lastLook)
		}
		s, err = d.wait(ctx, c, id, next, watches && !waits)
		early := time.Now().Before(next) // it returned before the time was over
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
		leave := v.onlyPeople && !asked && (declined || !patient)
		if slot != nil && (last || leave && !declined) {
			slot.made = d.taskOf(v, can)
			return s, &sdk.CallToolResult{}, nil // which withTasks replaces
		}
		if last || leave {
			asking.leave()
			return s, nil, nil
		}
	}
}

// resumed returns the id of the call that a tools/call goes on with: requestState holds it. It returns "" for a request without one. Nobody signed
// it, so it is looked up with the rights of the caller, and finds nothing of another's.
func (d *Door) resumed(ctx context.Context, c caller, r request, req *sdk.CallToolRequest) (id string, err error) {
	id = req.Params.RequestState
	if id == "" {
		return "", nil
	}
	wrong := invalid("requestState is of no such call: make the request again as it was, with the requestState of its last answer")
	if !value.IsUUID(id) || r.key != "" && r.ID != id {
		return "", wrong
	}
	var same bool
	err = d.as(ctx, c, func(db client.DB) error {
		return db.QueryRow(ctx, `select exists (select from public.core_tool_calls
			where id = $1 and created_by = (select public.gem_caller()) and tool_name = $2 and input = $3::text::jsonb)`, id, r.Tool, string(encode(r.Input))).Scan(&same)
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
