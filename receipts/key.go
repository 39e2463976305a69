package receipts

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
)

// maxReadable is the maximum length in bytes of a value that a key shows. A key has the hash of a longer value.
const maxReadable = 200

// Key returns the key of a keyed tool: the tool's name, the key field and its value in the input, for all callers. It
// returns false if the value is missing or empty. 1.0 and 1 give the same key. gem.key_of computes the same, and
// migrations/tables/00002_earlier_gem.sql for imported receipts, whose values are strings.
func Key(tool, field string, value json.RawMessage) (string, bool) {
	value = bytes.TrimSpace(value)
	if len(value) == 0 || bytes.Equal(value, []byte("null")) {
		return "", false
	}
	var text string
	if json.Unmarshal(value, &text) != nil { // a number, a boolean or a document, in the format of jsonb
		return tool + ":" + field + keyed("=", string(WithoutZeros(value)), ""), true
	}
	if text = TrimKey(text); text == "" {
		return "", false
	}
	return tool + ":" + field + keyed(`="`, text, `"`), true
}

// TrimKey removes the white space around a key, because pasted text often has some. The audit and
// migrations/tables/00002_earlier_gem.sql remove the same.
func TrimKey(key string) string { return strings.Trim(key, " \t\n\v\f\r") }

// ClientKey returns the key of a safe-retry tool for a client's key that TrimKey has trimmed. The key is valid for the
// same tool and caller. caller is the call's created_by, or "".
func ClientKey(tool, caller, clientKey string) string {
	// Quoted, so that no caller can look like another caller and a key.
	return tool + ":" + keyed("caller=", strconv.Quote(caller), "") + ":" + keyed("client=", clientKey, "")
}

func keyed(before, value, after string) string {
	if len(value) <= maxReadable {
		return before + value + after
	}
	sum := sha256.Sum256([]byte(value))
	return " sha256 " + hex.EncodeToString(sum[:])
}
