package registry

import "encoding/json"

// Steps counts the steps of checking an output, and says how many are allowed. Beyond that it stops.
func (t *Tool) Steps(raw json.RawMessage) (steps, most int) {
	d := decoder{}
	doc := d.decode(raw)
	if len(d.faults) > 0 {
		return 0, maxTime
	}
	m := meter{prices: t.output.prices}
	m.apply(t.output.compiled, doc, spot{})
	return m.time, maxTime
}

// Library reports whether the JSON Schema library would decide uniqueItems of the tool's outputs, pair by pair.
func (t *Tool) LibraryComparesItems() bool {
	for s := range t.output.prices {
		if s.UniqueItems {
			return true
		}
	}
	return false
}
