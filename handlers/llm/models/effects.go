package models

import "github.com/gemworker/gem/handlers/llm/ledger"

// called lists a request among the call's effects.
func (r *round) called(req *ledger.Request) {
	where := ""
	if arm, ok := r.Routes.Arm(req.Arm); ok { // it may be of an earlier file
		where = endpoint(arm.Provider)
	}
	r.call.CalledModel(req.Provider, where, req.HTTPStatus, req.Entry())
}
