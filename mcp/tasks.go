package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/prose"
	"github.com/gemworker/gem/receipts"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// tasksExtension is the extension in which a tools/call may be answered with a task (SEP-2663). A call already is
// one: it is durable before the client learns of it, and it has an id. So a task is a call with the call's id, and is
// kept as long as the call.
const tasksExtension = "io.modelcontextprotocol/tasks"

// shortestPoll and longestPoll limit the interval at which clients should poll a task.
const shortestPoll, longestPoll = 500 * time.Millisecond, 5 * time.Second

// task is a call in the form of tasks/get, or of the tools/call that made it.
type task struct {
	sdk.ResultBase
	ResultType     string `json:"resultType"` // task of tools/call; otherwise complete
	TaskID         string `json:"taskId"`
	Status         string `json:"status"` // working, input_required, completed, cancelled, failed
	StatusMessage  string `json:"statusMessage,omitempty"`
	CreatedAt      string `json:"createdAt"`
	LastUpdatedAt  string `json:"lastUpdatedAt"`
	TTLMs          *int   `json:"ttlMs"` // null: it is kept until an operator removes the call
	PollIntervalMs int64  `json:"pollIntervalMs"`

	InputRequests sdk.InputRequestMap `json:"inputRequests,omitempty"`
	Result        *sdk.CallToolResult `json:"result,omitempty"`
	Error         error               `json:"error,omitempty"` // a *jsonrpc.Error
}

func (t *task) open() bool { return t.Status == "working" || t.Status == "input_required" }

// acknowledgement answers tasks/update and tasks/cancel.
type acknowledgement struct {
	sdk.ResultBase
	ResultType string `json:"resultType"`
}

// taskParams are the params of all three methods.
type taskParams struct {
	sdk.ParamsBase
	TaskID         string                     `json:"taskId"`
	InputResponses map[string]json.RawMessage `json:"inputResponses,omitempty"`
}

// GetMeta returns the meta data of params, which may be missing: the SDK allows that in requests of other methods.
func (p *taskParams) GetMeta() map[string]any {
	if p == nil {
		return nil
	}
	return p.ParamsBase.GetMeta()
}

var taskMethods = []string{"tasks/get", "tasks/update", "tasks/cancel"}

// addTasks adds the methods of the extension to the server.
func (d *Server) addTasks() error {
	return errors.Join(
		sdk.AddReceivingCustomMethod(d.sdk, taskMethods[0], d.getTask),
		sdk.AddReceivingCustomMethod(d.sdk, taskMethods[1], d.updateTask),
		sdk.AddReceivingCustomMethod(d.sdk, taskMethods[2], d.cancelTask))
}

// withTasks answers a tools/call with the task that it has become. It rejects the methods of tasks if the client does
// not declare in the same request that it supports them.
func (d *Server) withTasks(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		session, ok := req.GetSession().(*sdk.ServerSession)
		if !ok || method != "tools/call" && !slices.Contains(taskMethods, method) {
			return next(ctx, method, req)
		}
		declared := abilitiesOf(session, req.GetExtra(), req.GetParams().GetMeta()).tasks
		switch {
		case method != "tools/call" && !declared:
			return nil, needsTasks()
		case method != "tools/call" || !declared:
			return next(ctx, method, req)
		}
		slot := &taskSlot{}
		result, err := next(withTaskSlot(ctx, slot), method, req)
		if err == nil && slot.made != nil {
			slot.made.ResultType, slot.made.InputRequests = "task", nil
			return slot.made, nil
		}
		return result, err
	}
}

// needsTasks returns the error for a client that does not declare support for tasks.
func needsTasks() error {
	return &jsonrpc.Error{Code: sdk.CodeMissingRequiredClientCapabilities,
		Message: "tasks need the extension " + tasksExtension + " among the client's capabilities",
		Data:    json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + tasksExtension + `":{}}}}`)}
}

// taskOf returns a call as a task. Its questions are included if the client can be asked them.
func (d *Server) taskOf(v view, can abilities) *task {
	t := &task{ResultType: "complete", TaskID: v.ID, Status: "working", StatusMessage: v.line(),
		CreatedAt: moment(v.CreatedAt), LastUpdatedAt: moment(v.UpdatedAt),
		PollIntervalMs: pollInterval(v.now.Sub(v.CreatedAt)).Milliseconds()}
	if v.ended() {
		e, _ := v.Receipt.Error()
		result, err := d.result(v.state)
		switch {
		case err != nil: // the tools/call would have returned it
			t.Status, t.Error, t.StatusMessage = "failed", err, err.Error()
		case e.Code == receipts.Cancelled:
			t.Status = "cancelled"
		default:
			t.Status, t.Result = "completed", result
		}
		return t
	}
	if ask := (replyOutcome{}).open(v.questions, can, d.o.DashboardURL); len(ask) > 0 {
		t.Status, t.InputRequests = "input_required", d.requests(ask, replyOutcome{})
	}
	return t
}

// pollInterval grows with the age of a task: one that has taken a minute rarely ends in the next second.
func pollInterval(age time.Duration) time.Duration {
	return min(max(age/20, shortestPoll), longestPoll)
}

// taskCaller checks the id, and returns the caller and the abilities of the client.
func taskCaller(ctx context.Context, session *sdk.ServerSession, p *taskParams) (c caller, can abilities, err error) {
	if c, err = callerOf(ctx); err != nil {
		return c, can, err
	}
	if p == nil {
		p = &taskParams{}
	}
	if !value.IsUUID(p.TaskID) {
		return c, can, noCall(prose.Cut(p.TaskID, 100))
	}
	p.TaskID = strings.ToLower(p.TaskID)
	return c, abilitiesOf(session, nil, p.Meta), nil
}

func (d *Server) getTask(ctx context.Context, session *sdk.ServerSession, p *taskParams) (*task, error) {
	c, can, err := taskCaller(ctx, session, p)
	if err != nil {
		return nil, err
	}
	key := glanceKey{c.subject, p.TaskID, can.form, can.url}
	if t := d.glances.recent(key); t != nil {
		return t, nil
	}
	v, err := d.look(ctx, c, p.TaskID)
	if err != nil {
		return nil, err
	}
	t := d.taskOf(v, can)
	d.glances.keep(key, t)
	return t, nil
}

// updateTask gives answers to a task's questions. It ignores keys that are not open, and a user who declines: the
// question stays open. An answer that does not fit is an error, since a client never repeats a question on its own.
func (d *Server) updateTask(ctx context.Context, session *sdk.ServerSession, p *taskParams) (*acknowledgement, error) {
	c, _, err := taskCaller(ctx, session, p)
	if err != nil {
		return nil, err
	}
	v, err := d.look(ctx, c, p.TaskID)
	if err != nil {
		return nil, err
	}
	said := map[string]reply{}
	for key, encoded := range p.InputResponses {
		var r reply
		if json.Unmarshal(encoded, &r) == nil {
			said[key] = r
		}
	}
	defer d.glances.forget(c.subject, p.TaskID)
	came, err := d.give(ctx, c, v.questions, said)
	for key, misfit := range came.misfits {
		return nil, invalid("the answer to %s does not fit: %s", key, misfit)
	}
	return &acknowledgement{ResultType: "complete"}, err
}

// cancelTask requests the end of a task. A finished task does not change.
func (d *Server) cancelTask(ctx context.Context, session *sdk.ServerSession, p *taskParams) (*acknowledgement, error) {
	c, _, err := taskCaller(ctx, session, p)
	if err != nil {
		return nil, err
	}
	defer d.glances.forget(c.subject, p.TaskID)
	_, err = d.cancel(ctx, c, p.TaskID)
	return &acknowledgement{ResultType: "complete"}, err
}

// glances caches open tasks, for clients that poll too often: it returns a view that is at most half a poll interval
// old. It holds no finished tasks.
type glances struct {
	mu  sync.Mutex
	all map[glanceKey]glance
}

type glanceKey struct {
	subject, id string
	form, url   bool
}

type glance struct {
	task  *task
	until time.Time
}

// maxGlances limits the size of the cache.
const maxGlances = 1024

func (g *glances) recent(key glanceKey) *task {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen, ok := g.all[key]
	if !ok || time.Now().After(seen.until) {
		delete(g.all, key)
		return nil
	}
	t := *seen.task // the SDK modifies the value
	return &t
}

func (g *glances) keep(key glanceKey, t *task) {
	if !t.open() {
		return
	}
	kept := *t
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil || len(g.all) >= maxGlances {
		g.all = map[glanceKey]glance{}
	}
	g.all[key] = glance{&kept, time.Now().Add(time.Duration(t.PollIntervalMs) * time.Millisecond / 2)}
}

// forget removes a task that has changed.
func (g *glances) forget(subject, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range 4 {
		delete(g.all, glanceKey{subject, id, i&1 > 0, i&2 > 0})
	}
}
