package os

import (
	"context"
	"encoding/json"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/table"
	"github.com/gemworker/gem/handlers/value"
)

// CreateNote is a note to keep.
type CreateNote struct {
	Domain     string      `json:"domain"`
	Title      string      `json:"title"`
	Content    string      `json:"content"`
	EntityRefs []EntityRef `json:"entity_refs"`
}

// EntityRef names the subject of a note. GEM stores it and does not look it up.
type EntityRef struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// NoteRef names the new note.
type NoteRef struct {
	NoteID string `json:"note_id"`
}

// CreateNote is os.create_note.
func (*OS) CreateNote(ctx context.Context, tx handlers.Tx, call *handlers.Call, in CreateNote) (NoteRef, error) {
	if in.EntityRefs == nil {
		in.EntityRefs = []EntityRef{} // an empty list in the row, not null
	}
	id, err := table.Insert(ctx, tx, call, "notes", `insert into public.notes (domain, title, content, entity_refs,
		call_id)
		values ($1, $2, $3, $4, $5) returning id::text`, in.Domain, in.Title, in.Content, in.EntityRefs, call.ID)
	return NoteRef{NoteID: id}, err
}

// SearchNotes finds the notes whose title or content has every word of the query, the newest first.
type SearchNotes struct {
	Query  string      `json:"query"`
	Domain string      `json:"domain"`
	Limit  value.Limit `json:"limit"` // 20 by default
}

// NotesFound is the result of [SearchNotes].
type NotesFound struct {
	Results []Note `json:"results"`
}

// Note is a found note.
type Note struct {
	NoteID     string          `json:"note_id"`
	Domain     string          `json:"domain"`
	Title      string          `json:"title"`
	Content    string          `json:"content"`
	EntityRefs json.RawMessage `json:"entity_refs"`
	CreatedAt  value.Time      `json:"created_at"`
	UpdatedAt  value.Time      `json:"updated_at"`
}

// SearchNotes is os.search_notes.
func (*OS) SearchNotes(ctx context.Context, tx handlers.Tx, call *handlers.Call, in SearchNotes) (NotesFound, error) {
	found, err := table.List[Note](ctx, tx, call, "notes", `
		select id::text, domain, title, content, entity_refs, created_at, updated_at from public.notes
		where (title || ' ' || content) ilike all ($1::text[]) and ($2 in ('', 'both') or domain in ($2, 'both')) and `+
		mayUse(4)+`
		order by created_at desc, id limit $3`, value.Words(in.Query), in.Domain, in.Limit.Or(20, 50), reader(call))
	return NotesFound{Results: found}, err
}
