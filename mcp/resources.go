package mcp

import (
	"context"
	"errors"
	"strings"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/receipts"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	receiptURI = "gem://receipt/"
	journalURI = "gem://journal/"
)

// addResources adds the receipts and journals of calls to the server, each under its call's id.
func (d *Server) addResources() {
	for _, r := range []struct {
		uri, name, description string
		read                   func(context.Context, client.DB, string) (any, error)
	}{
		{receiptURI, "receipt", "The receipt of a call: its outcome, its result and its effects.", readReceipt},
		{journalURI, "journal", "The events of a call, in order.",
			func(ctx context.Context, db client.DB, id string) (any, error) {
				return client.VisibleJournal(ctx, db, id, 0)
			}},
	} {
		d.sdk.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: r.uri + "{call_id}", Name: r.name,
			Description: r.description, MIMEType: "application/json"},
			func(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
				c, err := callerOf(ctx)
				if err != nil {
					return nil, err
				}
				id := strings.ToLower(strings.TrimPrefix(req.Params.URI, r.uri))
				if !value.IsUUID(id) {
					return nil, sdk.ResourceNotFoundError(req.Params.URI)
				}
				var found any
				err = d.as(ctx, c, func(db client.DB) error {
					found, err = r.read(ctx, db, id)
					return err
				})
				var none *client.NotFoundError
				if errors.As(err, &none) || errors.Is(err, receipts.ErrNone) {
					return nil, sdk.ResourceNotFoundError(req.Params.URI)
				} else if err != nil {
					return nil, err
				}
				return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: req.Params.URI, MIMEType: "application/json",
					Text: string(encode(found))}}}, nil
			})
	}
}

func readReceipt(ctx context.Context, db client.DB, id string) (any, error) {
	s, err := client.GetVisible(ctx, db, id)
	if err != nil {
		return nil, err
	}
	if s.Receipt == nil {
		return nil, receipts.ErrNone
	}
	return s.Receipt, nil
}
