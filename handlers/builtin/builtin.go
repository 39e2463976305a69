// Package builtin lists GEM's own domains, as in the program gem.
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

// Domains returns new values of the domains for gem.Program.
func Domains() []any {
	models := llm.Domain()
	return []any{os.Domain(), leads.Domain(), entity.Domain(), comms.Domain(), web.Domain(), models,
		extract.Domain(models), agent.Domain(models)}
}
