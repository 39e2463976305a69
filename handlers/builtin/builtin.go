// Package builtin lists the domains that come with GEM, as the program gem has them.
package builtin

import (
	"github.com/gemworker/gem/handlers/agent"
	"github.com/gemworker/gem/handlers/comms"
	"github.com/gemworker/gem/handlers/entity"
	"github.com/gemworker/gem/handlers/extract"
	"github.com/gemworker/gem/handlers/leads"
	"github.com/gemworker/gem/handlers/llm"
	"github.com/gemworker/gem/handlers/os"
	"github.com/gemworker/gem/handlers/web"
)

// Domains returns them for gem.Program, each made anew.
func Domains() []any {
	models, asked := llm.DomainAndModels()
	return []any{os.Domain(), leads.Domain(), entity.Domain(), comms.Domain(), web.Domain(), models, extract.Domain(asked), agent.Domain(asked)}
}
