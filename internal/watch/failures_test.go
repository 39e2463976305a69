package watch

import "testing"

func TestMessagesOfOneKindAreOneWithoutTheirValues(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"order 17 was refused by shelf 4":                                   "order … was refused by shelf …",
		`no lead "Ada 'the' Count" in region 'north'`:                       "no lead … in region …",
		"call 0b8f6e1c-3a52-4c1e-9f63-2d7a1b9c4e55 took 3.5s, at 09:30:00.": "call … took …, at ….",
		"don't know the customer's name":                                    "don't know the customer's name",
		"POST https://api.example.com/v2/leads: 502":                        "POST https://api.example.com/…/leads: …",
		"an open \" quote and  two\n lines":                                 "an open \" quote and two lines",
		"":                                                                  "",
	} {
		if got := withoutValues(message); got != want {
			t.Errorf("%q becomes %q, want %q", message, got, want)
		}
	}
}
