package router

import (
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider/ledger"
)

// called lists a request among the call's effects.
func (m *Models) called(call *handlers.Durable, req *ledger.Request) {
	where := ""
	if target, ok := m.Routes.Target(req.Target); ok { // it may come from an earlier file
		where = endpoint(target.Provider)
	}
	call.CalledModel(req.Provider, where, req.HTTPStatus, req.Entry())
}
