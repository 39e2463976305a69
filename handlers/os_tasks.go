package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// CreateTask is something to do.
type CreateTask struct {
	Title       string      `json:"title"`
	Domain      string      `json:"domain"`
	Description string      `json:"description"`
	DueAt       *Time       `json:"due_at"`
	ContextRef  *ContextRef `json:"context_ref"`
	Priority    string      `json:"priority"` // normal by default
}

// TaskCreated names the new task.
type TaskCreated struct {
	TaskID string `json:"task_id"`
}

// CreateTask is os.create_task.
func (OS) CreateTask(ctx context.Context, tx Tx, call *Call, in CreateTask) (TaskCreated, error) {
	if in.Priority == "" {
		in.Priority = "normal"
	}
	var out TaskCreated
	err := tx.QueryRow(ctx, `insert into tasks (title, domain, description, due_at, context_ref, priority, call_id)
		values ($1, $2, $3, $4, $5, $6, $7) returning id::text`,
		in.Title, in.Domain, orNull(in.Description), in.DueAt, in.ContextRef, in.Priority, call.ID).Scan(&out.TaskID)
	if err != nil {
		return TaskCreated{}, fmt.Errorf("insert the task: %w", err)
	}
	call.Wrote("tasks", Insert, out.TaskID)
	return out, nil
}

// UpdateTask changes what its patch names and leaves the rest.
type UpdateTask struct {
	TaskID string          `json:"task_id"`
	Patch  json.RawMessage `json:"patch"`
}

// TaskChanged names the task that was changed.
type TaskChanged struct {
	TaskID string `json:"task_id"`
}

var taskColumns = map[string]rule{
	"title":       text(200),
	"domain":      oneOf("business", "personal", "both"),
	"description": orEmpty(text(0)),
	"due_at":      orEmpty(dateTime),
	"context_ref": orEmpty(object),
	"priority":    oneOf("low", "normal", "high"),
	"status":      oneOf("open", "done"),
}

// UpdateTask is os.update_task. Setting status opens a task again, or completes it.
func (OS) UpdateTask(ctx context.Context, tx Tx, call *Call, in UpdateTask) (TaskChanged, error) {
	patch, err := readPatch(in.Patch, taskColumns)
	if err != nil {
		return TaskChanged{}, err
	}
	if len(patch) == 0 {
		return unchangedTask(ctx, tx, call, in.TaskID)
	}
	return changeTask(ctx, tx, call, in.TaskID, `update tasks set
			title       = coalesce($2::jsonb ->> 'title', title),
			domain      = coalesce($2::jsonb ->> 'domain', domain),
			priority    = coalesce($2::jsonb ->> 'priority', priority),
			status      = coalesce($2::jsonb ->> 'status', status),
			description = case when $2::jsonb ? 'description' then $2::jsonb ->> 'description' else description end,
			due_at      = case when $2::jsonb ? 'due_at' then ($2::jsonb ->> 'due_at')::timestamptz else due_at end,
			context_ref = case when $2::jsonb ? 'context_ref' then nullif($2::jsonb -> 'context_ref', 'null') else context_ref end,
			completed_at = case $2::jsonb ->> 'status' when 'done' then coalesce(completed_at, now()) when 'open' then null
				else completed_at end,
			completion_note = case when $2::jsonb ->> 'status' = 'open' then null else completion_note end,
			updated_at  = now()
		where id = $1 returning id::text`, patch)
}

// CompleteTask marks a task as done. One that is done already stays as it is, but for a new note.
type CompleteTask struct {
	TaskID string `json:"task_id"`
	Note   string `json:"note"`
}

// CompleteTask is os.complete_task.
func (OS) CompleteTask(ctx context.Context, tx Tx, call *Call, in CompleteTask) (TaskChanged, error) {
	return changeTask(ctx, tx, call, in.TaskID, `update tasks set status = 'done', completed_at = coalesce(completed_at, now()),
			completion_note = coalesce($2, completion_note), updated_at = now()
		where id = $1 returning id::text`, orNull(in.Note))
}

// DeferTask moves the due date of a task. It does not open a task that is done.
type DeferTask struct {
	TaskID string `json:"task_id"`
	DueAt  Time   `json:"due_at"`
	Reason string `json:"reason"` // the row keeps the last one, the journal all
}

// DeferTask is os.defer_task.
func (OS) DeferTask(ctx context.Context, tx Tx, call *Call, in DeferTask) (TaskChanged, error) {
	return changeTask(ctx, tx, call, in.TaskID, `update tasks set due_at = $2, defer_reason = $3, updated_at = now()
		where id = $1 returning id::text`, in.DueAt, orNull(in.Reason))
}

// changeTask runs an update whose $1 is the task's id.
func changeTask(ctx context.Context, tx Tx, call *Call, taskID, update string, args ...any) (TaskChanged, error) {
	id, err := rowID("tasks", taskID)
	if err != nil {
		return TaskChanged{}, err
	}
	var out TaskChanged
	err = tx.QueryRow(ctx, update, append([]any{id}, args...)...).Scan(&out.TaskID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return TaskChanged{}, NotFound("tasks", id)
	case err != nil:
		return TaskChanged{}, fmt.Errorf("update the task: %w", err)
	}
	call.Wrote("tasks", Update, out.TaskID)
	return out, nil
}

func unchangedTask(ctx context.Context, tx Tx, call *Call, taskID string) (TaskChanged, error) {
	id, err := rowID("tasks", taskID)
	if err != nil {
		return TaskChanged{}, err
	}
	var out TaskChanged
	err = tx.QueryRow(ctx, `select id::text from tasks where id = $1`, id).Scan(&out.TaskID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return TaskChanged{}, NotFound("tasks", id)
	case err != nil:
		return TaskChanged{}, fmt.Errorf("look for the task: %w", err)
	}
	call.Read("tasks", 1)
	return out, nil
}

// ListTasks lists tasks: open ones by due date, those without one last; done ones by when they were done, the last first;
// all of them the newest first.
type ListTasks struct {
	Status string `json:"status"` // open by default
	Domain string `json:"domain"`
	Limit  Limit  `json:"limit"` // 50 by default
}

// TasksListed is the answer to [ListTasks].
type TasksListed struct {
	Tasks []Task `json:"tasks"`
}

// Task is a task as it is listed.
type Task struct {
	TaskID         string          `json:"task_id"`
	Title          string          `json:"title"`
	Domain         string          `json:"domain"`
	Description    *string         `json:"description,omitempty"`
	DueAt          *Time           `json:"due_at,omitempty"`
	ContextRef     json.RawMessage `json:"context_ref,omitempty"`
	Priority       string          `json:"priority"`
	Status         string          `json:"status"`
	CompletedAt    *Time           `json:"completed_at,omitempty"`
	CompletionNote *string         `json:"completion_note,omitempty"`
	DeferReason    *string         `json:"defer_reason,omitempty"`
	CreatedAt      Time            `json:"created_at"`
	UpdatedAt      Time            `json:"updated_at"`
}

// Each order is that of an index.
var taskLists = map[string]string{
	"open": `status = 'open' and %s order by due_at, created_at, id`,
	"done": `status = 'done' and %s order by completed_at desc nulls last, id`,
	"all":  `%s order by created_at desc, id`,
}

// ListTasks is os.list_tasks.
func (OS) ListTasks(ctx context.Context, tx Tx, call *Call, in ListTasks) (TasksListed, error) {
	list, ok := taskLists[in.Status]
	if !ok {
		list = taskLists["open"]
	}
	rows, err := tx.Query(ctx, `select id::text, title, domain, description, due_at, context_ref, priority, status, completed_at,
			completion_note, defer_reason, created_at, updated_at
		from tasks where `+fmt.Sprintf(list, `($1 in ('', 'both') or domain in ($1, 'both'))`)+` limit $2`,
		in.Domain, in.Limit.or(50, 100))
	if err != nil {
		return TasksListed{}, fmt.Errorf("list the tasks: %w", err)
	}
	tasks, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Task])
	if err != nil {
		return TasksListed{}, fmt.Errorf("list the tasks: %w", err)
	}
	call.Read("tasks", len(tasks))
	return TasksListed{Tasks: tasks}, nil
}

// CreateReminder is something to be reminded of at a time. It is a row to be read: GEM itself sends nothing when it is due.
type CreateReminder struct {
	Title      string      `json:"title"`
	RemindAt   Time        `json:"remind_at"`
	Domain     string      `json:"domain"` // both by default
	ContextRef *ContextRef `json:"context_ref"`
}

// ReminderCreated names the new reminder.
type ReminderCreated struct {
	ReminderID string `json:"reminder_id"`
}

// CreateReminder is os.create_reminder.
func (OS) CreateReminder(ctx context.Context, tx Tx, call *Call, in CreateReminder) (ReminderCreated, error) {
	if in.Domain == "" {
		in.Domain = "both"
	}
	var out ReminderCreated
	err := tx.QueryRow(ctx, `insert into reminders (title, remind_at, domain, context_ref, call_id) values ($1, $2, $3, $4, $5)
		returning id::text`, in.Title, in.RemindAt, in.Domain, in.ContextRef, call.ID).Scan(&out.ReminderID)
	if err != nil {
		return ReminderCreated{}, fmt.Errorf("insert the reminder: %w", err)
	}
	call.Wrote("reminders", Insert, out.ReminderID)
	return out, nil
}
