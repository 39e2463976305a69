package registry

import "encoding/json"

// OwnText is the file of GEM's own tools.
var OwnText = ownText

// CheckedSum is the content of checked.sha256.
var CheckedSum = checkedSum

// Steps counts the steps of checking an output, and says how many are allowed.
func (t *Tool) Steps(raw json.RawMessage) (steps, most int) { return t.output.Steps(raw) }

// LibraryComparesItems reports whether the JSON Schema library would decide uniqueItems of the tool's outputs, pair by
// pair.
func (t *Tool) LibraryComparesItems() bool { return t.output.LibraryComparesItems() }

// ResolveRecorded is [ParseRecorded] for a program whose own entries are those of another registry file.
func ResolveRecorded(data, ownFile []byte) (*Registry, error) {
	entries, err := readCatalog(ownFile)
	if err != nil {
		return nil, err
	}
	return resolve(data, entries, true)
}
