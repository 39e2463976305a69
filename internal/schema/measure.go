package schema

// Steps counts the steps of checking a document, and says how many are allowed, for tests. Beyond that it stops.
func (s *Schema) Steps(raw []byte) (steps, most int) {
	d := decoder{}
	doc := d.decode(raw)
	if len(d.faults) > 0 {
		return 0, maxTime
	}
	m := meter{prices: s.compiled().prices}
	m.apply(s.compiled().root, doc, spot{})
	return m.time, maxTime
}

// LibraryComparesItems reports, for tests, whether the JSON Schema library would decide uniqueItems of the schema, pair
// by pair.
func (s *Schema) LibraryComparesItems() bool {
	for part := range s.compiled().prices {
		if part.UniqueItems {
			return true
		}
	}
	return false
}
