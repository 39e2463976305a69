package worker

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
)

// field returns the value of a field of the input, or nil if it is missing.
func (a *attempt) field(name string) json.RawMessage { return a.inputFields()[name] }

func (a *attempt) inputFields() (fields map[string]json.RawMessage) {
	if json.Unmarshal(a.claim.Input, &fields) != nil {
		return nil
	}
	return fields
}

// keyedBy returns the idempotency that determined the call's key. A call that made progress has kept its key since its
// first attempt, and its tool's entry may have changed since. A keyed call always has a key.
func (a *attempt) keyedBy() registry.Idempotency {
	now := a.tool.Idempotency
	switch {
	case a.claim.Steps == 0:
		return now
	case a.key == "" && (now.Mode == registry.Keyed || a.keyUnder(now) != ""):
		return registry.Idempotency{Mode: registry.None}
	case a.keyUnder(now) == a.key:
		return now
	}
	earlier := []registry.Idempotency{{Mode: registry.SafeRetry}}
	for _, name := range slices.Sorted(maps.Keys(a.inputFields())) {
		earlier = append(earlier, registry.Idempotency{Mode: registry.Keyed, KeyField: name})
	}
	for _, one := range earlier {
		if a.keyUnder(one) == a.key {
			return one
		}
	}
	return now
}

// keyUnder returns the key that the call would have, or "" if it would have none.
func (a *attempt) keyUnder(i registry.Idempotency) string {
	switch i.Mode {
	case registry.SafeRetry:
		if key := receipts.TrimKey(a.claim.ClientKey); key != "" {
			return receipts.ClientKey(a.tool.Name, a.claim.CreatedBy, key)
		}
	case registry.Keyed:
		if key, present := receipts.Key(a.tool.Name, i.KeyField, a.field(i.KeyField)); present {
			return key
		}
	}
	return ""
}
