package handlers

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// CreateNote is a note to keep.
type CreateNote struct {
	Domain     string      `json:"domain"`
	Title      string      `json:"title"`
	Content    string      `json:"content"`
	EntityRefs []EntityRef `json:"entity_refs"`
}

// EntityRef names what a note is about. GEM stores it and does not look it up.
type EntityRef struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// NoteCreated names the new note.
type NoteCreated struct {
	NoteID string `json:"note_id"`
}

// CreateNote is os.create_note.
func (OS) CreateNote(ctx context.Context, tx Tx, call *Call, in CreateNote) (NoteCreated, error) {
	if in.EntityRefs == nil {
		in.EntityRefs = []EntityRef{} // an empty list in the row, and no null
	}
	var out NoteCreated
	err := tx.QueryRow(ctx, `insert into notes (domain, title, content, entity_refs, call_id) values ($1, $2, $3, $4, $5)
		returning id::text`, in.Domain, in.Title, in.Content, in.EntityRefs, call.ID).Scan(&out.NoteID)
	if err != nil {
		return NoteCreated{}, fmt.Errorf("insert the note: %w", err)
	}
	call.Wrote("notes", Insert, out.NoteID)
	return out, nil
}

// SearchNotes finds the notes in whose title or content every word of the query occurs, the newest first.
type SearchNotes struct {
	Query  string `json:"query"`
	Domain string `json:"domain"`
	Limit  Limit  `json:"limit"` // 20 by default
}

// NotesFound is the answer to [SearchNotes].
type NotesFound struct {
	Results []Note `json:"results"`
}

// Note is a note as it is found.
type Note struct {
	NoteID     string          `json:"note_id"`
	Domain     string          `json:"domain"`
	Title      string          `json:"title"`
	Content    string          `json:"content"`
	EntityRefs json.RawMessage `json:"entity_refs"`
	CreatedAt  Time            `json:"created_at"`
	UpdatedAt  Time            `json:"updated_at"`
}

// SearchNotes is os.search_notes.
func (OS) SearchNotes(ctx context.Context, tx Tx, call *Call, in SearchNotes) (NotesFound, error) {
	rows, err := tx.Query(ctx, `select id::text, domain, title, content, entity_refs, created_at, updated_at from notes
		where (title || ' ' || content) ilike all ($1::text[]) and ($2 in ('', 'both') or domain in ($2, 'both'))
		order by created_at desc, id limit $3`, words(in.Query), in.Domain, in.Limit.or(20, 50))
	if err != nil {
		return NotesFound{}, fmt.Errorf("search the notes: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Note])
	if err != nil {
		return NotesFound{}, fmt.Errorf("search the notes: %w", err)
	}
	call.Read("notes", len(found))
	return NotesFound{Results: found}, nil
}
