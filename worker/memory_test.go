package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/gemworker/gem/internal/store"
	"github.com/gemworker/gem/receipts"
	"github.com/google/go-cmp/cmp"
)

func lostEnd(n int) store.Lost {
	a := store.Attempt{CallID: fmt.Sprintf("01a21fbc-f55e-7974-8fec-%012d", n), Number: 1, WorkerID: "w"}
	return store.Lost{Attempt: a, Tool: "lab.send", Code: []byte{0, 1, 2}, Key: "k", Ended: true,
		ReceiptID: fmt.Sprintf("01a21fbc-f55e-7974-8fed-%012d", n),
		Call: &store.Call{Input: []byte(`{"text": "ü"}`), CreatedBy: "ada", SessionID: "s", SignedIn: true,
			ParentID: a.CallID, ParentStep: "step", ClientKey: "c"},
		Final: &store.Final{Outcome: receipts.Outcome{Status: receipts.Failed, Result: []byte(`{}`), Context: "why"},
			Effects: []byte(`{"emails": 1}`)}}
}

func TestAnEndIsRememberedAsItWas(t *testing.T) {
	t.Parallel()
	m := &memory{room: maxPayloads}
	unsigned := lostEnd(2)
	unsigned.Call, unsigned.ReceiptID = &store.Call{Input: []byte("{}")}, ""
	for _, want := range []store.Lost{lostEnd(1), unsigned} {
		m.add(want, true, "")
		got, known := m.find(want.Attempt)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(store.Call{})); !known || diff != "" {
			t.Errorf("known: %t\n%s", known, diff)
		}
	}
	m.add(store.Lost{Attempt: lostEnd(3).Attempt, Key: "k"}, false, "send")
	if _, known := m.find(lostEnd(3).Attempt); known {
		t.Error("the beginning of a step counts as an end")
	}
	all := m.all()
	if name, key := all[2].begun(); name != "send" || key != "k" {
		t.Errorf("the step %q, key %q", name, key)
	}
}

func TestAMemoryWithoutRoomForgetsTheOldestPayloadsFirst(t *testing.T) {
	t.Parallel()
	m := &memory{room: maxPayloads}
	m.add(lostEnd(1), true, "")
	m.room = 5 * m.bytes / 2
	for n := 2; n <= 4; n++ {
		m.add(lostEnd(n), true, "")
	}
	for n := 1; n <= 4; n++ {
		got, _ := m.find(lostEnd(n).Attempt)
		if full := got.Final != nil; full != (n > 2) || string(got.Code) != "\x00\x01\x02" || got.ReceiptID == "" {
			t.Errorf("of end %d it remembers %+v", n, got)
		}
	}
}

func TestAMemoryForgetsWhatIsOldAndWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	m := &memory{room: maxPayloads}
	now := time.Now()
	m.beat(now, time.Second)
	for n := range maxEnds + 10 {
		m.add(lostEnd(n), true, "")
	}
	if _, known := m.find(lostEnd(9).Attempt); known || len(m.all()) != maxEnds {
		t.Errorf("it remembers %d ends, of the oldest %t", len(m.all()), known)
	}
	m.beat(now.Add(time.Hour), time.Second) // an outage
	m.add(lostEnd(maxEnds+10), true, "")
	for second := range 599 {
		m.beat(now.Add(time.Hour+time.Duration(second+1)*time.Second), time.Second)
	}
	if _, known := m.find(lostEnd(maxEnds + 9).Attempt); known {
		t.Error("an end of 601 s before is remembered")
	}
	if all := m.all(); len(all) != 1 || m.bytes != len(all[0].packed) {
		t.Errorf("%d ends of %d bytes", len(all), m.bytes)
	}
}
