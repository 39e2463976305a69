package mcp

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// meta is the prefix of our names in _meta.
const meta = "io.github.gemworker/"

// theKey is the name under which a request asks for a call: asked again with it, it is the same call. chosen says that it was given as such: in _meta, in the
// header Idempotency-Key, or as gem_key. Otherwise it is Claude Code's name of this use of a tool, if that is there.
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
		if unquoted, ok := strings.CutPrefix(text, `"`); ok && strings.HasSuffix(unquoted, `"`) { // a string of RFC 8941, as the draft of the header has it
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
	return "", false, invalid("the request has keys that differ, in _meta[%q], the header Idempotency-Key or gem_key: send one", meta+"key")
}

func checkKey(key string) error {
	if n := utf8.RuneCountInString(key); n < 1 || n > 255 || !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return invalid("a key must have 1 to 255 characters, and this one has %d, or some that cannot be stored", n)
	}
	return nil
}

// rowID is the id of the call that a subject makes of a tool under a key: a UUID of version 8, of a hash over the three. Each is preceded by its length, so
// that no two triples give the same bytes.
func rowID(subject, tool, key string) string {
	h := sha256.New()
	for _, part := range []string{"gem mcp", subject, tool, key} {
		fmt.Fprintf(h, "%s%s", binary.BigEndian.AppendUint64(nil, uint64(len(part))), part)
	}
	id := uuid.UUID(h.Sum(nil)[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id.String()
}
