package worker

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/jackc/pgx/v5/pgtype"
)

// The limits of a worker's memory. A manager such as Patroni promotes a standby that lags by less than a number of
// bytes, however old the missing commits are: 1 MB may hold the ends of several minutes. Only the time between answered
// heartbeats counts: an outage makes no end older.
const (
	keepEnds    = 10 * time.Minute
	maxEnds     = 100_000
	maxPayloads = 16 << 20 // bytes
)

// remembered is an end that this worker wrote lately, or the beginning of a step that must not run twice. It is small,
// because a worker remembers many.
type remembered struct {
	call, receipt [16]byte
	attempt       int32
	step          bool          // it is the beginning of a step
	outside       bool          // the handler may have had effects outside of Postgres
	served        time.Duration // how long heartbeats had been answered when it was written
	tool          string
	// packed has, for a step, its name and the key of its attempt. For an end, it has the call's code and, if full, all
	// else that a restore needs.
	packed string
	full   bool
}

// memory has what this worker wrote lately, in order. After a failover the new server may lack it.
type memory struct {
	mu     sync.Mutex
	served time.Duration // how long heartbeats have been answered
	beatAt time.Time     // the time of the last answered heartbeat
	list   []remembered
	bytes  int // of packed
	room   int // the limit of bytes: above it, the oldest ends lose all but their code
	first  int // the ends before this index have only their code
}

// add remembers an end, or the beginning of the step with the given name.
func (m *memory) add(lost store.Lost, outside bool, step string) {
	r := remembered{call: binaryID(lost.CallID), receipt: binaryID(lost.ReceiptID), attempt: int32(lost.Number),
		tool: lost.Tool, step: step != "", outside: outside}
	switch {
	case r.step:
		r.packed = pack(step, lost.Key)
	case lost.Final == nil:
		r.packed = pack(string(lost.Code))
	default:
		c, f := lost.Call, lost.Final
		r.full = true
		signedIn := ""
		if c.SignedIn {
			signedIn = "yes"
		}
		r.packed = pack(string(lost.Code), lost.Key, string(c.Input), c.CreatedBy, c.SessionID, signedIn, c.ParentID,
			c.ParentStep, c.ClientKey, string(f.Status), string(f.Result), f.Context, string(f.Effects))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r.served = m.served
	m.list = append(m.list, r)
	m.bytes += len(r.packed)
	for ; m.bytes > m.room && m.first < len(m.list); m.first++ {
		if old := &m.list[m.first]; old.full {
			m.bytes -= len(old.packed)
			old.packed, old.full = pack(unpack(old.packed)()), false
			m.bytes += len(old.packed)
		}
	}
	if len(m.list) > maxEnds {
		m.drop(len(m.list) - maxEnds)
	}
}

// drop forgets the n oldest entries.
func (m *memory) drop(n int) {
	for i := range m.list[:n] {
		m.bytes -= len(m.list[i].packed)
	}
	clear(m.list[:n])
	m.list = m.list[n:]
	m.first = max(0, m.first-n)
}

// beat counts an answered heartbeat, and forgets what is old enough.
func (m *memory) beat(now time.Time, interval time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.beatAt.IsZero() {
		m.served += min(now.Sub(m.beatAt), 2*interval)
	}
	m.beatAt = now
	old := 0
	for old < len(m.list) && m.served-m.list[old].served > keepEnds {
		old++
	}
	m.drop(old)
}

// all returns a copy of the list.
func (m *memory) all() []remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.list)
}

// find returns the end of an attempt whose handler may have had effects outside of Postgres, if it was written lately.
func (m *memory) find(a store.Attempt) (lost store.Lost, known bool) {
	call := binaryID(a.CallID)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.list {
		if r := &m.list[i]; r.call == call && int(r.attempt) == a.Number && r.outside && !r.step {
			return r.lost(a.WorkerID), true
		}
	}
	return lost, false
}

// of returns the attempt, which is one of the given worker.
func (r *remembered) of(workerID string) store.Attempt {
	return store.Attempt{CallID: textID(r.call), Number: int(r.attempt), WorkerID: workerID}
}

// begun returns the name of a step and the key that its attempt held.
func (r *remembered) begun() (name, key string) {
	next := unpack(r.packed)
	return next(), next()
}

// lost returns what the memory still has of an end.
func (r *remembered) lost(workerID string) store.Lost {
	l := store.Lost{Attempt: r.of(workerID), Tool: r.tool, Ended: true, ReceiptID: textID(r.receipt)}
	next := unpack(r.packed)
	if code := next(); code != "" {
		l.Code = []byte(code)
	}
	if !r.full {
		return l
	}
	l.Key = next()
	l.Call = &store.Call{Input: []byte(next()), CreatedBy: next(), SessionID: next(), SignedIn: next() != "",
		ParentID: next(), ParentStep: next(), ClientKey: next()}
	l.Final = &store.Final{Outcome: receipts.Outcome{Status: receipts.Status(next()), Result: []byte(next()),
		Context: next()}, Effects: []byte(next())}
	return l
}

// binaryID returns the bytes of a UUID, and zeros for an empty text.
func binaryID(text string) [16]byte {
	var id pgtype.UUID
	_ = id.Scan(text) // valid, since Postgres wrote it
	return id.Bytes
}

// textID is the inverse of binaryID.
func textID(id [16]byte) string {
	if id == [16]byte{} {
		return ""
	}
	return pgtype.UUID{Bytes: id, Valid: true}.String()
}

// pack joins texts into one.
func pack(texts ...string) string {
	size := 0
	for _, text := range texts {
		size += binary.MaxVarintLen32 + len(text)
	}
	packed := make([]byte, 0, size)
	for _, text := range texts {
		packed = binary.AppendUvarint(packed, uint64(len(text)))
		packed = append(packed, text...)
	}
	return string(packed)
}

// unpack returns a function that returns the next text at each call.
func unpack(packed string) (next func() string) {
	rest := []byte(packed)
	return func() string {
		n, used := binary.Uvarint(rest)
		text := string(rest[used : used+int(n)])
		rest = rest[used+int(n):]
		return text
	}
}
