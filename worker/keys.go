package worker

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
)

// field is the value of a field of the input; nil if it is missing.
func (a *attempt) field(name string) json.RawMessage { return a.inputFields()[name] }

func (a *attempt) inputFields() (fields map[string]json.RawMessage) {
	if json.Unmarshal(a.Input, &fields) != nil {
		return nil
	}
	return fields
}

// keyedBy returns the idempotency under which the key of the call was decided. A call that made progress has kept its key since its first attempt,
// and the entry of its tool may have changed since.
func (a *attempt) keyedBy() registry.Idempotency {
	now := a.tool.Idempotency
	if a.Steps == 0 || a.keyUnder(now) == a.key {
		return now
	}
	if a.key == "" {
		return registry.Idempotency{Mode: registry.None}
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

// keyUnder is the key that the call would have; empty for none.
func (a *attempt) keyUnder(i registry.Idempotency) string {
	switch i.Mode {
	case registry.SafeRetry:
		if key := receipts.TrimKey(a.ClientKey); key != "" {
			return receipts.ClientKey(a.tool.Name, a.CreatedBy, key)
		}
	case registry.Keyed:
		if key, present := receipts.Key(a.tool.Name, i.KeyField, a.field(i.KeyField)); present {
			return key
		}
	}
	return ""
}
