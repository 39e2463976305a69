package mcp

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/google/uuid"
)

// rowID is the id of the call that a subject makes of a tool under a key: a UUID of version 8, of a hash over the three. Each is preceded by its length,
// so that no two triples are hashed as the same bytes.
func rowID(subject, tool, key string) string {
	h := sha256.New()
	for _, part := range []string{"gem mcp call", subject, tool, key} {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
		h.Write([]byte(part))
	}
	id := uuid.UUID(h.Sum(nil)[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id.String()
}
