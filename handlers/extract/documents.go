package extract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/table"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// AddDocument adds a part to a document, or begins one with its first part.
type AddDocument struct {
	DocumentID string `json:"document_id"` // a new document if it is empty
	Title      string `json:"title"`       // of a new document
	Seq        int    `json:"seq"`         // the part's number; the next one if it is 0
	Text       string `json:"text"`        // at most 512 KiB in UTF-8
}

// Part is a part of a document.
type Part struct {
	DocumentID string `json:"document_id"`
	Seq        int    `json:"seq"`
	Length     int    `json:"length"` // of its text, in bytes of UTF-8
	SHA256     string `json:"sha256"`
}

// AddDocument is extract.add_document. A part that the document already has, with the same number and text, is not
// added again. The triggers of the tables reject invalid parts.
func (*Extract) AddDocument(ctx context.Context, tx handlers.Tx, call *handlers.Call, in AddDocument) (out Part,
	err error) {
	if in.DocumentID == "" {
		out.DocumentID, err = table.Insert(ctx, tx, call, "extract_documents",
			"insert into public.extract_documents (title, created_by, call_id) values ($1, $2, $3) returning id::text",
			table.Null(in.Title), table.Null(call.CreatedBy), call.ID)
	} else {
		// The requested part, if the document has it.
		err = tx.QueryRow(ctx, `select d.id::text, coalesce(p.seq, 0), coalesce(p.bytes, 0), coalesce(p.sha256, '')
			from public.extract_documents d left join public.extract_document_parts p on p.document_id = d.id and p.seq = $3
				and p.text = $4
			where d.id = $1 and d.created_by is not distinct from $2`, in.DocumentID, table.Null(call.CreatedBy), in.Seq,
			in.Text).
			Scan(&out.DocumentID, &out.Seq, &out.Length, &out.SHA256)
		if errors.Is(err, pgx.ErrNoRows) {
			return out, notFound(in.DocumentID)
		}
	}
	if err != nil {
		return out, fmt.Errorf("add the document: %w", err)
	}
	if out.Seq != 0 {
		call.Read("extract_document_parts", 1)
		return out, nil
	}
	var seq *int
	if in.Seq != 0 {
		seq = &in.Seq
	}
	err = tx.QueryRow(ctx, "insert into public.extract_document_parts (document_id, seq, text, call_id) values ($1, $2, "+
		"$3, $4) returning seq, bytes, sha256",
		out.DocumentID, seq, in.Text, call.ID).Scan(&out.Seq, &out.Length, &out.SHA256)
	if err != nil {
		return out, refusal(fmt.Errorf("add the part: %w", err))
	}
	call.Wrote("extract_document_parts", handlers.Insert, fmt.Sprintf("%s/%d", out.DocumentID, out.Seq))
	return out, nil
}

// refusals are the names of the triggers' errors, as constraints.
var refusals = []string{"part_out_of_order", "part_empty", "part_too_large", "document_too_large"}

// refusal converts the error of a trigger into a failure with a specific code.
func refusal(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || !slices.Contains(refusals, pgErr.ConstraintName) {
		return err
	}
	return &handlers.Failure{Code: pgErr.ConstraintName,
		Message: strings.ToUpper(pgErr.Message[:1]) + pgErr.Message[1:] + ". " + pgErr.Hint}
}

// notFound returns the failure of a call that names a missing document, or another caller's.
func notFound(id string) error {
	return &handlers.Failure{Code: "not_found", Message: fmt.Sprintf(
		"There is no document %s of this call's caller: check the id.", id),
		Details: map[string]string{"reason": "not_found", "table": "extract_documents", "id": id}}
}
