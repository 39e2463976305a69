// Package extract is the domain extract: it converts documents into data, each piece with its place in the document. A
// model quotes, and GEM finds the quote. Package grounding has the parts that need neither database nor network.
package extract

import (
	"embed"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider/router"
)

// Extract has the tools of the domain.
type Extract struct {
	asked  router.Source
	config config
	db     handlers.DB
}

// config has the settings of extraction.
type config struct {
	CacheScope string `envconfig:"EXTRACT_CACHE_SCOPE" default:"caller" may:"caller or all" desc:"Who shares the answers about a text: caller, so that nobody is given what another one asked, or all."`
}

// shared is the scope in which all callers share answers.
const shared = "all"

// Wrong returns the variables with unusable values.
func (c *config) Wrong() map[string]string {
	if c.CacheScope != "caller" && c.CacheScope != shared {
		return map[string]string{"EXTRACT_CACHE_SCOPE": ""}
	}
	return nil
}

//go:embed *.sql
var tables embed.FS

// Domain returns the domain extract. It uses the models of llm, the program's domain llm.
func Domain(llm handlers.Domain) handlers.Domain {
	e := &Extract{asked: router.From(llm)}
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

// scope returns the users who share the answers to a call of a user: that user, or everybody.
func (e *Extract) scope(createdBy string) string {
	if e.config.CacheScope == shared {
		return ""
	}
	return createdBy
}
