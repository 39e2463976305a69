package receipts

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
)

// maxReadable is the length in bytes up to which a key's value stands in it readably; a longer one stands as its hash.
const maxReadable = 200

// Key computes the key of a keyed tool: the tool's name, the key field and its value in the input, whoever calls. It
// returns false when the value is missing or empty. migrations/tables/00002_earlier_gem.sql computes the same for imported receipts.
func Key(tool, field string, value json.RawMessage) (string, bool) {
	value = bytes.TrimSpace(value)
	if len(value) == 0 || bytes.Equal(value, []byte("null")) {
		return "", false
	}
	var text string
	if json.Unmarshal(value, &text) != nil { // a number, a boolean or a document: as jsonb writes it
		return tool + ":" + field + keyed("=", string(value), ""), true
	}
	if text = TrimKey(text); text == "" {
		return "", false
	}
	return tool + ":" + field + keyed(`="`, text, `"`), true
}

// TrimKey removes the white space around a key, which counts for nothing: what is pasted often has some. The audit and
// migrations/tables/00002_earlier_gem.sql remove the same.
func TrimKey(key string) string { return strings.Trim(key, " \t\n\v\f\r") }

// ClientKey computes the key of a safe-retry tool from the key that the client chose, as TrimKey returns it: it counts for the
// same tool and the same caller. caller is the call's created_by, empty when there is none.
func ClientKey(tool, caller, clientKey string) string {
	// Quoted, so that no caller can be written to look like another caller and a key.
	return tool + ":" + keyed("caller=", strconv.Quote(caller), "") + ":" + keyed("client=", clientKey, "")
}

func keyed(before, value, after string) string {
	if len(value) <= maxReadable {
		return before + value + after
	}
	sum := sha256.Sum256([]byte(value))
	return " sha256 " + hex.EncodeToString(sum[:])
}
