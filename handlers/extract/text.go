package extract

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// text returns the text of a run's input, or of the document that it names. The document's number of parts is a step of
// the call. The journal does not have the text: a resumed run reads the same parts again, which nobody can change.
func (e *Extract) text(ctx context.Context, call *handlers.Durable, in *request) (text string, err error) {
	if in.DocumentID == "" {
		return in.Text, nil
	}
	here := false
	parts, err := handlers.Step(ctx, call, "document", func(ctx context.Context) (parts int, err error) {
		if text, parts, err = e.document(ctx, call, in.DocumentID, nil); err == nil {
			call.Read("extract_document_parts", parts)
			here = true
		}
		return parts, err
	})
	if err == nil && !here {
		text, _, err = e.document(ctx, call, in.DocumentID, &parts)
	}
	return text, err
}

// document reads the caller's document with an id, up to a part; nil means all of it.
func (e *Extract) document(ctx context.Context, call *handlers.Durable, id string, last *int) (text string, parts int,
	err error) {
	rows, err := e.db.Query(ctx, `select p.text from public.extract_documents d
		join public.extract_document_parts p on p.document_id = d.id
		where d.id = $1 and d.created_by is not distinct from nullif($2, '') and ($3::integer is null or p.seq <= $3)
			order by p.seq`, id, call.CreatedBy, last)
	if err != nil {
		return "", 0, unreached(err)
	}
	var b strings.Builder
	var part string
	_, err = pgx.ForEachRow(rows, []any{&part}, func() error {
		parts++
		b.WriteString(part)
		return nil
	})
	switch {
	case err != nil:
		return "", 0, unreached(err)
	case parts == 0:
		return "", 0, notFound(id)
	}
	return b.String(), parts, nil
}

// unreached marks the error of a statement that Postgres did not reject: its connection broke, or there was none, and
// another attempt may have one.
func unreached(err error) error {
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
		return err
	}
	return handlers.Transient(err)
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}
