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
	"github.com/gemworker/gem/receipts"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// tasksExtension is the extension in which a tools/call may be answered with a task (SEP-2663). A call is one already: it is durable before the
// client hears of it, and it has an id. So a task is a call, its id is the call's, and it is kept as long as the call.
const tasksExtension = "io.modelcontextprotocol/tasks"

// shortestPoll and longestPoll bound the pause that clients are asked to make between two looks at a task.
const shortestPoll, longestPoll = 500 * time.Millisecond, 5 * time.Second

// task is a call as tasks/get, or the tools/call that made it, says it.
type task struct {
	sdk.ResultBase
	ResultType     string `json:"resultType"` // task of tools/call; otherwise complete
	TaskID         string `json:"taskId"`
	Status         string `json:"status"` // working, input_required, completed, cancelled, failed
	StatusMessage  string `json:"statusMessage,omitempty"`
	CreatedAt      string `json:"createdAt"`
	LastUpdatedAt  string `json:"lastUpdatedAt"`
	TTLMs          *int   `json:"ttlMs"` // null: kept until an operator removes the call
	PollIntervalMs int64  `json:"pollIntervalMs"`

	InputRequests sdk.InputRequestMap `json:"inputRequests,omitempty"`
	Result        *sdk.CallToolResult `json:"result,omitempty"`
	Error         error               `json:"error,omitempty"` // a *jsonrpc.Error
}

func (t *task) open() bool { return t.Status == "working" || t.Status == "input_required" }

// acknowledged is the answer to tasks/update and tasks/cancel.
type acknowledged struct {
	sdk.ResultBase
	ResultType string `json:"resultType"`
}

// taskParams are those of all three methods.
type taskParams struct {
	sdk.ParamsBase
	TaskID         string                     `json:"taskId"`
	InputResponses map[string]json.RawMessage `json:"inputResponses,omitempty"`
}

// GetMeta is that of params that may not be there: the SDK lets requests of other methods than its own leave them out.
func (p *taskParams) GetMeta() map[string]any {
	if p == nil {
		return nil
	}
	return p.ParamsBase.GetMeta()
}

var taskMethods = []string{"tasks/get", "tasks/update", "tasks/cancel"}

// addTasks gives the server the methods of the extension.
func (d *Door) addTasks() error {
	return errors.Join(
		sdk.AddReceivingCustomMethod(d.server, taskMethods[0], d.getTask),
		sdk.AddReceivingCustomMethod(d.server, taskMethods[1], d.updateTask),
		sdk.AddReceivingCustomMethod(d.server, taskMethods[2], d.cancelTask))
}

// withTasks answers a tools/call with the task that it has become, and refuses the methods of tasks to a client that does not say, with this very request,
// that it knows them.
func (d *Door) withTasks(next sdk.MethodHandler) sdk.MethodHandler {
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

// needsTasks is the error for a client that does not say that it knows tasks.
func needsTasks() error {
	return &jsonrpc.Error{Code: sdk.CodeMissingRequiredClientCapabilities, Message: "tasks need the extension " + tasksExtension + " among the client's capabilities",
		Data: json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + tasksExtension + `":{}}}}`)}
}

// taskOf is a call as a task. Its questions are told as far as the client can be asked them.
func (d *Door) taskOf(v view, can abilities) *task {
	t := &task{ResultType: "complete", TaskID: v.ID, Status: "working", StatusMessage: v.line(), CreatedAt: moment(v.CreatedAt), LastUpdatedAt: moment(v.UpdatedAt),
		PollIntervalMs: pollInterval(v.now.Sub(v.CreatedAt)).Milliseconds()}
	if v.ended() {
		e, _ := v.Receipt.Error()
		result, err := d.result(v.state)
		switch {
		case err != nil: // which the tools/call would have been answered with
			t.Status, t.Error, t.StatusMessage = "failed", err, err.Error()
		case e.Code == receipts.Cancelled:
			t.Status = "cancelled"
		default:
			t.Status, t.Result = "completed", result
		}
		return t
	}
	if ask := (replied{}).open(v.questions, can, d.o.DashboardURL); len(ask) > 0 {
		t.Status, t.InputRequests = "input_required", d.requests(ask, replied{})
	}
	return t
}

// pollInterval grows with the age of a task: one that has taken a minute is not over in the next second.
func pollInterval(age time.Duration) time.Duration {
	return min(max(age/20, shortestPoll), longestPoll)
}

// taskCaller checks the id, and returns who asks and what the client can do.
func taskCaller(ctx context.Context, session *sdk.ServerSession, p *taskParams) (c caller, can abilities, err error) {
	if c, err = callerOf(ctx); err != nil {
		return c, can, err
	}
	if p == nil {
		p = &taskParams{}
	}
	if !value.IsUUID(p.TaskID) {
		return c, can, noCall(cut(p.TaskID, 100))
	}
	p.TaskID = strings.ToLower(p.TaskID)
	return c, abilitiesOf(session, nil, p.Meta), nil
}

func (d *Door) getTask(ctx context.Context, session *sdk.ServerSession, p *taskParams) (*task, error) {
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

// updateTask gives answers to what a task asks. Keys that are not open are passed over, and so is a user who does not want to answer: the
// question stays open. An answer that does not fit is an error, since a client asks no question twice by itself.
func (d *Door) updateTask(ctx context.Context, session *sdk.ServerSession, p *taskParams) (*acknowledged, error) {
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
	return &acknowledged{ResultType: "complete"}, err
}

// cancelTask asks for the end of a task. One that has ended stays as it is.
func (d *Door) cancelTask(ctx context.Context, session *sdk.ServerSession, p *taskParams) (*acknowledged, error) {
	c, _, err := taskCaller(ctx, session, p)
	if err != nil {
		return nil, err
	}
	defer d.glances.forget(c.subject, p.TaskID)
	_, err = d.cancel(ctx, c, p.TaskID)
	return &acknowledged{ResultType: "complete"}, err
}

// glances are the last looks at open tasks, for clients that look more often than they are asked to: what was seen half a poll interval ago
// is said again. What has ended is not kept here.
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

// maxGlances bounds how many are kept.
const maxGlances = 1024

func (g *glances) recent(key glanceKey) *task {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen, ok := g.all[key]
	if !ok || time.Now().After(seen.until) {
		delete(g.all, key)
		return nil
	}
	t := *seen.task // the SDK adds to what it sends
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

// forget drops what is known of a task that has changed.
func (g *glances) forget(subject, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range 4 {
		delete(g.all, glanceKey{subject, id, i&1 > 0, i&2 > 0})
	}
}
