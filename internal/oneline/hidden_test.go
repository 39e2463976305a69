package oneline

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCharactersWithoutAShapeAreHidden(t *testing.T) {
	t.Parallel()
	for _, r := range [][2]rune{
		{0, 8}, {0xb, 0x1f}, {0x7f, 0x9f}, {0xad, 0xad}, {0x34f, 0x34f}, {0x61c, 0x61c}, {0x115f, 0x1160}, {0x17b4, 0x17b5},
		{0x180b, 0x180e}, {0x200b, 0x200b}, {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0x3164, 0x3164},
		{0xe000, 0xf8ff},
		{0xfe00, 0xfe0f}, {0xfeff, 0xfeff}, {0xffa0, 0xffa0}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
	} {
		for c := r[0]; c <= r[1]; c++ {
			if !Hidden(c) {
				t.Errorf("%U is not hidden", c)
			}
		}
	}
	for _, c := range "\n\t aé٣你😀\u0301\u200c\u200d" {
		if Hidden(c) {
			t.Errorf("%U is hidden", c)
		}
	}
}

func TestJSONKeepsItsValueWithoutHiddenCharacters(t *testing.T) {
	t.Parallel()
	const text = "{\r\n\t\"\u202ea\": [\"\u009b2J\u007f\", \"\U000e0041é\"]}"
	const want = "{\r\n\t\"\\u202ea\": [\"\\u009b2J\\u007f\", \"\\udb40\\udc41é\"]}"
	if got := string(JSON([]byte(text))); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	var before, after map[string][]string
	if json.Unmarshal([]byte(text), &before) != nil || json.Unmarshal([]byte(want), &after) != nil ||
		strings.Join(before["\u202ea"], " ") != strings.Join(after["\u202ea"], " ") {
		t.Errorf("got %q, want %q", after, before)
	}
}
