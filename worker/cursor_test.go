package worker

import (
	"testing"
	"time"
)

// A full claim may have waited for a connection. Only if the next one is slow too are they made seldom.
func TestOneSlowFullClaimDoesNotPutOffTheNext(t *testing.T) {
	t.Parallel()
	var c claimCursor
	now := time.Now()
	full := func(after time.Duration) bool {
		now = now.Add(after)
		return c.next(now) == nil
	}
	if !full(0) {
		t.Fatal("the first claim was not full")
	}
	c.advance(nil, true, 2*time.Second)
	if !full(fullClaimEvery) {
		t.Error("after a slow one the next was put off")
	}
	c.advance(nil, true, time.Second)
	if full(fullClaimShare*time.Second-1) || !full(1) {
		t.Error("after two slow ones the next did not come after forty times the shorter")
	}
}

// Calls that come back, one after another, do not make every claim walk the whole queue.
func TestWhatLiesBehindIsLookedForWithinAnEighthOfTheTime(t *testing.T) {
	t.Parallel()
	var c claimCursor
	now := time.Now()
	full := func(after time.Duration) bool {
		now = now.Add(after)
		c.rewind()
		return c.next(now) == nil
	}
	for range 2 {
		if !full(time.Hour) {
			t.Fatal("it was not full")
		}
		c.advance(nil, true, time.Second)
	}
	if full(rewindShare*time.Second-1) || !full(1) {
		t.Error("after two slow ones the next did not come after eight times the shorter")
	}
}

// Calls that come back soon after a full claim are not left until the next poll.
func TestTheLoopKnowsWhenItMayLookBehindAgain(t *testing.T) {
	t.Parallel()
	var c claimCursor
	now := time.Now()
	for range 2 {
		now = now.Add(time.Hour)
		c.next(now)
		c.advance(nil, true, time.Second)
	}
	if got := c.untilBehind(now); got < time.Hour {
		t.Errorf("nothing is behind, and the loop looks again in %v", got)
	}
	c.rewind()
	now = now.Add(time.Second)
	if c.next(now) == nil {
		t.Fatal("the claim was full")
	}
	if got := c.untilBehind(now); got != (rewindShare-1)*time.Second {
		t.Errorf("the loop looks again in %v", got)
	}
}
