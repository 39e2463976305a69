package shares_test

import (
	"context"
	"errors"
	"testing"

	"github.com/gemworker/gem/internal/shares"
)

func TestAShareIsGoneWithTheLastWhoUsesIt(t *testing.T) {
	t.Parallel()
	var s shares.Shares[string]
	over, end := context.WithCancel(t.Context())
	end()
	free, err := s.Take(t.Context(), "ada", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Take(over, "ada", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("when the time is over: %v", err)
	}
	his, err := s.Take(over, "bob", 1) // he need not wait, so his slot is free or his time is over
	if err == nil {
		his()
	}
	next := make(chan func())
	go func() {
		free, err := s.Take(t.Context(), "ada", 1)
		if err != nil {
			t.Error(err)
		}
		next <- free
	}()
	free()
	(<-next)()
	if in := s.In(); len(in) != 0 {
		t.Errorf("left: %v", in)
	}
}
