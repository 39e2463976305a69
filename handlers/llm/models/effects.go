package models

import (
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/ledger"
)

// called lists a request among the call's effects.
func (m *Models) called(call *handlers.Durable, req *ledger.Request) {
	where := ""
	if arm, ok := m.Routes.Arm(req.Arm); ok { // it may be of an earlier file
		where = endpoint(arm.Provider)
	}
	call.CalledModel(req.Provider, where, req.HTTPStatus, req.Entry())
}
