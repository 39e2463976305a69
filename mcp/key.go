package mcp

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// meta is the prefix of our names in _meta.
const meta = "io.github.gemworker/"

// theKey returns the key of a request: requests with the same key are the same call. chosen means that the client set
// it, in _meta, in the header Idempotency-Key, or as gem_key. Otherwise it is Claude Code's id of this tool use, if
// present.
func theKey(m map[string]any, header http.Header, argument *string) (key string, chosen bool, err error) {
	given := map[string]bool{}
	if value, ok := m[meta+"key"]; ok {
		text, isText := value.(string)
		if !isText {
			return "", false, invalid("_meta[%q] must be a string", meta+"key")
		}
		given[text] = true
	}
	if values := header.Values("Idempotency-Key"); len(values) > 0 {
		text := strings.TrimSpace(strings.Join(values, ", "))
		// It is a string of RFC 8941, as in the draft of the header.
		if unquoted, ok := strings.CutPrefix(text, `"`); ok && strings.HasSuffix(unquoted, `"`) {
			text = strings.TrimSuffix(unquoted, `"`)
		}
		given[text] = true
	}
	if argument != nil {
		given[*argument] = true
	}
	switch len(given) {
	case 0:
		key, _ = m["claudecode/toolUseId"].(string)
		if checkKey(key) != nil {
			key = ""
		}
		return key, false, nil
	case 1:
		for key = range given {
		}
		return key, true, checkKey(key)
	}
	return "", false, invalid("the request has different keys, in _meta[%q], the header Idempotency-Key or gem_key: "+
		"send one", meta+"key")
}

func checkKey(key string) error {
	if n := utf8.RuneCountInString(key); n < 1 || n > 255 || !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return invalid("a key must have 1 to 255 characters that can be stored, and this one has %d characters", n)
	}
	return nil
}

// rowID returns the id of a subject's call to a tool under a key: a UUID of version 8. Its first half is of a hash of
// subject and tool: the database refuses a signed-in user's own ids of version 8 that begin otherwise, so that nobody
// can take the id of another's key. Its second half is of a hash of all three.
func rowID(subject, tool, key string) string {
	id := uuid.UUID(slices.Concat(hash("gem mcp", subject, tool)[:8], hash("gem mcp", subject, tool, key)[:8]))
	id[6] = id[6]&0x0f | 0x80 // version 8
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id.String()
}

// hash returns the hash of parts. Each is preceded by its length, so that no two lists give the same bytes.
func hash(parts ...string) []byte {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%s%s", binary.BigEndian.AppendUint64(nil, uint64(len(part))), part)
	}
	return h.Sum(nil)
}
