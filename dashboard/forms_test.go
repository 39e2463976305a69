package dashboard

import (
	"fmt"
	"testing"
	"time"
)

// A forgotten form would act again.
func TestTheOldestFormIsForgottenForANewOne(t *testing.T) {
	t.Parallel()
	f := newForms()
	now := time.Now()
	for i := range mostForms + 5 {
		if i >= mostForms {
			f.forget()
		}
		f.sent[fmt.Sprint(i)] = &outcome{at: now.Add(time.Duration(i) * time.Microsecond)}
	}
	for i := range mostForms + 5 {
		if _, kept := f.sent[fmt.Sprint(i)]; kept != (i >= 5) {
			t.Errorf("form %d: kept is %t", i, kept)
		}
	}
	f.sent["old"] = &outcome{at: now.Add(-time.Hour)}
	if f.forget(); f.sent["old"] != nil || len(f.sent) != mostForms-1 {
		t.Errorf("%d forms are kept", len(f.sent))
	}
}
