package os

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/table"
	"github.com/gemworker/gem/handlers/value"
)

// CreateTask is a task.
type CreateTask struct {
	Title       string            `json:"title"`
	Domain      string            `json:"domain"`
	Description string            `json:"description"`
	DueAt       *value.Time       `json:"due_at"`
	ContextRef  *value.ContextRef `json:"context_ref"`
	Priority    string            `json:"priority"` // normal by default
}

// TaskRef names the task that was created or changed.
type TaskRef struct {
	TaskID string `json:"task_id"`
}

// CreateTask is os.create_task.
func (*OS) CreateTask(ctx context.Context, tx handlers.Tx, call *handlers.Call, in CreateTask) (TaskRef, error) {
	id, err := table.Insert(ctx, tx, call, "tasks", `select gem_os.create_task($1, $2, $3, $4, $5, $6, $7)::text`,
		in.Title, in.Domain, table.Null(in.Description), in.DueAt, in.ContextRef, cmp.Or(in.Priority, "normal"), call.ID)
	return TaskRef{TaskID: id}, err
}

// UpdateTask changes the columns that its patch names.
type UpdateTask struct {
	TaskID string          `json:"task_id"`
	Patch  json.RawMessage `json:"patch"`
}

var taskColumns = map[string]value.Rule{
	"title":       value.Text(200),
	"domain":      value.OneOf("business", "personal", "both"),
	"description": value.OrNull(value.Text(0)),
	"due_at":      value.OrNull(value.DateTime),
	"context_ref": value.OrNull(value.Object),
	"priority":    value.OneOf("low", "normal", "high"),
	"status":      value.OneOf("open", "done"),
}

// UpdateTask is os.update_task. Setting status reopens or completes a task. A signed-in user cannot make another user's
// task personal, which would hide it from everybody.
func (*OS) UpdateTask(ctx context.Context, tx handlers.Tx, call *handlers.Call, in UpdateTask) (TaskRef, error) {
	if user := reader(call); user != nil { // an empty patch must not reveal that the task exists
		var id string
		if err := table.Row(ctx, tx, "tasks", in.TaskID, "select id::text from public.tasks where id = $1 and "+mayUse(2),
			[]any{user}, &id); err != nil {
			return TaskRef{}, err
		}
	}
	var due struct { // Postgres cannot read every date-time that the rule accepts
		At *value.Time `json:"due_at"`
	}
	_ = json.Unmarshal(in.Patch, &due) // Patch reports unreadable values
	id, err := table.Patch(ctx, tx, call, "public.tasks", in.TaskID, in.Patch, taskColumns, `update public.tasks set
			title       = coalesce($2::jsonb ->> 'title', title),
			domain      = coalesce($2::jsonb ->> 'domain', domain),
			priority    = coalesce($2::jsonb ->> 'priority', priority),
			status      = coalesce($2::jsonb ->> 'status', status),
			description = case when $2::jsonb ? 'description' then $2::jsonb ->> 'description' else description end,
			due_at      = case when $2::jsonb ? 'due_at' then $3 else due_at end,
			context_ref = case when $2::jsonb ? 'context_ref' then nullif($2::jsonb -> 'context_ref', 'null')
				else context_ref end,
			completed_at = case $2::jsonb ->> 'status' when 'done' then coalesce(completed_at, now()) when 'open' then null
				else completed_at end,
			completion_note = case when $2::jsonb ->> 'status' = 'open' then null else completion_note end,
			updated_at  = now()
		where id = $1 and `+mayUse(4)+`
			and ($4 is null or $2::jsonb ->> 'domain' is distinct from 'personal' or created_by = $4)
		returning id::text`, due.At, reader(call))
	return TaskRef{TaskID: id}, err
}

// CompleteTask marks a task as done. If it is already done, only its note changes.
type CompleteTask struct {
	TaskID string `json:"task_id"`
	Note   string `json:"note"`
}

// CompleteTask is os.complete_task.
func (*OS) CompleteTask(ctx context.Context, tx handlers.Tx, call *handlers.Call, in CompleteTask) (TaskRef, error) {
	id, err := table.Update(ctx, tx, call, "tasks", in.TaskID,
		`update public.tasks set status = 'done', completed_at = coalesce(completed_at, now()),
			completion_note = coalesce($2, completion_note), updated_at = now()
		where id = $1 and `+mayUse(3)+` returning id::text`, table.Null(in.Note), reader(call))
	return TaskRef{TaskID: id}, err
}

// DeferTask moves the due date of a task. It does not reopen a completed task.
type DeferTask struct {
	TaskID string     `json:"task_id"`
	DueAt  value.Time `json:"due_at"`
	Reason string     `json:"reason"` // the row keeps the last reason, the journal all
}

// DeferTask is os.defer_task.
func (*OS) DeferTask(ctx context.Context, tx handlers.Tx, call *handlers.Call, in DeferTask) (TaskRef, error) {
	id, err := table.Update(ctx, tx, call, "tasks", in.TaskID,
		`update public.tasks set due_at = $2, defer_reason = $3, updated_at = now()
		where id = $1 and `+mayUse(4)+` returning id::text`, in.DueAt, table.Null(in.Reason), reader(call))
	return TaskRef{TaskID: id}, err
}

// ListTasks lists tasks: open tasks by due date, with undated tasks last; completed tasks by completion, the latest
// first; all tasks by creation, the newest first.
type ListTasks struct {
	Status string      `json:"status"` // open by default
	Domain string      `json:"domain"`
	Limit  value.Limit `json:"limit"` // 50 by default
}

// TasksListed is the result of [ListTasks].
type TasksListed struct {
	Tasks []Task `json:"tasks"`
}

// Task is a listed task.
type Task struct {
	TaskID         string          `json:"task_id"`
	Title          string          `json:"title"`
	Domain         string          `json:"domain"`
	Description    *string         `json:"description,omitempty"`
	DueAt          *value.Time     `json:"due_at,omitempty"`
	ContextRef     json.RawMessage `json:"context_ref,omitempty"`
	Priority       string          `json:"priority"`
	Status         string          `json:"status"`
	CompletedAt    *value.Time     `json:"completed_at,omitempty"`
	CompletionNote *string         `json:"completion_note,omitempty"`
	DeferReason    *string         `json:"defer_reason,omitempty"`
	CreatedAt      value.Time      `json:"created_at"`
	UpdatedAt      value.Time      `json:"updated_at"`
}

// Each order has an index.
var taskLists = map[string]string{
	"open": `status = 'open' and %s order by due_at, created_at, id`,
	"done": `status = 'done' and %s order by completed_at desc nulls last, id`,
	"all":  `%s order by created_at desc, id`,
}

// ListTasks is os.list_tasks.
func (*OS) ListTasks(ctx context.Context, tx handlers.Tx, call *handlers.Call, in ListTasks) (TasksListed, error) {
	list := cmp.Or(taskLists[in.Status], taskLists["open"])
	tasks, err := table.List[Task](ctx, tx, call, "tasks", `select id::text, title, domain, description, due_at,
		context_ref, priority, status,
			completed_at, completion_note, defer_reason, created_at, updated_at
		from public.tasks where `+fmt.Sprintf(list, `($1 in ('', 'both') or domain in ($1, 'both')) and `+mayUse(3))+
		` limit $2`, in.Domain, in.Limit.Or(50, 100), reader(call))
	return TasksListed{Tasks: tasks}, err
}

// CreateReminder is a reminder for a time. It is only a row: GEM sends nothing when it is due.
type CreateReminder struct {
	Title      string            `json:"title"`
	RemindAt   value.Time        `json:"remind_at"`
	Domain     string            `json:"domain"` // both by default
	ContextRef *value.ContextRef `json:"context_ref"`
}

// ReminderRef names the new reminder.
type ReminderRef struct {
	ReminderID string `json:"reminder_id"`
}

// CreateReminder is os.create_reminder.
func (*OS) CreateReminder(ctx context.Context, tx handlers.Tx, call *handlers.Call, in CreateReminder) (ReminderRef,
	error) {
	id, err := table.Insert(ctx, tx, call, "reminders", `insert into public.reminders (title, remind_at, domain,
		context_ref, call_id)
		values ($1, $2, $3, $4, $5) returning id::text`, in.Title, in.RemindAt, cmp.Or(in.Domain, "both"), in.ContextRef,
		call.ID)
	return ReminderRef{ReminderID: id}, err
}
