// Package extract is the domain extract: it reads documents into data, each piece with the place in the document where it stands. A model
// quotes, and GEM finds the quote; package extract of the module's root has all that needs neither database nor network.
package extract

import (
	"embed"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/models"
)

// Extract has the tools of the domain.
type Extract struct {
	asked models.Source
}

//go:embed *.sql
var tables embed.FS

// Domain returns the domain extract, which asks the models of that source.
func Domain(asked models.Source) handlers.Domain {
	return handlers.Domain{
		Tools:  &Extract{asked: asked},
		Tables: tables,
		Grants: []string{"select, insert on extract_documents", "select, insert on extract_document_parts"},
	}
}
