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
	asked  models.Source
	config config
	db     handlers.DB
}

// config is what the environment says of extraction.
type config struct {
	CacheScope string `envconfig:"EXTRACT_CACHE_SCOPE" default:"caller" may:"caller or all" desc:"Who shares the answers about a text: caller, so that nobody is given what another one asked, or all."`
}

// shared is the scope in which all callers share the answers.
const shared = "all"

// Wrong names the variables that cannot be used.
func (c *config) Wrong() map[string]string {
	if c.CacheScope != "caller" && c.CacheScope != shared {
		return map[string]string{"EXTRACT_CACHE_SCOPE": ""}
	}
	return nil
}

//go:embed *.sql
var tables embed.FS

// Domain returns the domain extract, which asks the models of that source.
func Domain(asked models.Source) handlers.Domain {
	e := &Extract{asked: asked}
	return handlers.Domain{
		Tools:  e,
		Config: &e.config,
		Open: func(env handlers.Env) error {
			e.db = env.Pool
			return nil
		},
		Tables: tables,
		Grants: []string{"select, insert on public.extract_documents", "select, insert on public.extract_document_parts"},
	}
}

// scope names those who share the answers to a call of that user: the user, or everybody.
func (e *Extract) scope(createdBy string) string {
	if e.config.CacheScope == shared {
		return ""
	}
	return createdBy
}
