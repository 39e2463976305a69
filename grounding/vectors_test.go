package grounding

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/internal/schema"
)

// These tables record the behaviour of ekchylisma at commit 0bab1e6. This package continues ekchylisma. The tables have
// the values that it keeps, next to the intended differences.

func TestATextIsNormalised(t *testing.T) {
	t.Parallel()
	lines := func(n int) Change { return Change{"line_ends", n} }
	spaces := func(n int) Change { return Change{"line_spaces", n} }
	for _, v := range []struct {
		given, read, trimmed string
		changes              []Change // by NormaliseTrimmed, which includes the other steps
		sum, sumTrimmed      string   // "" where ekchylisma differs: it keeps a byte order mark
	}{
		{"a \r\nb\t\rc  ", "a \nb\t\nc  ", "a\nb\nc", []Change{lines(2), spaces(3)},
			"412661fd56788c69effe5c72bb58b9862b1e8e772dc6fc333748392cc518f3f9",
			"ea7fb08b7a2dc4619ffb7c7bb38d95a2047935fa165d71b12efd3852a2e6d0cc"},
		{"x \u2028y", "x \u2028y", "x\u2028y", []Change{spaces(1)},
			"de2c5cef5c6e82f3b9b39bd8988388c8de6d3ddbd1b07fe7da50b240faa2fa93",
			"1b7192a795a80fdb263dfb49db6d0632cb89d199a30581af3a99936bb963f01e"},
		{"x\u00a0\ny", "x\u00a0\ny", "x\u00a0\ny", nil, "7dbb14a8a8dc5c695bc37e0669c447bce7d1581de5dfd3d26da6636900736d19",
			"7dbb14a8a8dc5c695bc37e0669c447bce7d1581de5dfd3d26da6636900736d19"},
		{"\ufeffA\r\r\n", "A\n\n", "A\n\n", []Change{{"bom", 1}, lines(2)}, "", ""},
		{"cafe\u0301 \n", "cafe\u0301 \n", "cafe\u0301\n", []Change{spaces(1)},
			"5d559fb088543481b9a0006bb355cf1c56f0b99ba2c4d1e14735b501bc9e9b97",
			"dcc492420fc77018ce8b7eb59458568e7901e9751194f4dbe7a1044ca16ccd2e"},
		{"", "", "", nil, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
			"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{"\n\n \t\n", "\n\n \t\n", "\n\n\n", []Change{spaces(1)},
			"004530e402f8ad01fa656964a58bd1be47b77e50e4bfe73388ec48da476e6ed9",
			"6a3cf5192354f71615ac51034b3e97c20eda99643fcaf5bbe6d41ad59bd12167"},
	} {
		for _, of := range []struct {
			text            *Text
			read, sum, mode string
		}{{Normalise(v.given), v.read, v.sum, "normalised"},
			{NormaliseTrimmed(v.given), v.trimmed, v.sumTrimmed, "trimmed"}} {
			if got := of.text.Read(); got != of.read {
				t.Errorf("%q %s: got %q, want %q", v.given, of.mode, got, of.read)
			}
			if got := sum([]byte(of.text.Read())); of.sum != "" && got != of.sum {
				t.Errorf("%q %s: got the sum %s, want %s", v.given, of.mode, got, of.sum)
			}
		}
		if diff := cmp.Diff(v.changes, NormaliseTrimmed(v.given).Changes()); diff != "" {
			t.Errorf("%q: changes (-want +got):\n%s", v.given, diff)
		}
	}
}

func TestWhatWasTrimmedMapsBack(t *testing.T) {
	t.Parallel()
	const given = "a \r\nb\t\rc  "
	text := NormaliseTrimmed(given)
	start := strings.Index(text.Read(), "b\nc")
	from, to := text.Given(start), text.Given(start+len("b\nc"))
	if from != 4 || to != 8 || given[from:to] != "b\t\rc" {
		t.Errorf("got [%d,%d) %q, want [4,8)", from, to, given[from:to])
	}
}

// Keys are sorted by bytes. ekchylisma sorts them as ICU does. The first program has the same hash in both orders, and
// the second does not.
func TestTheCanonicalFormOfAProgramIsKept(t *testing.T) {
	t.Parallel()
	for _, v := range []struct{ program, sum string }{
		{`{"description":"Extract tokens.","classes":[{"name":"extraction","allowInferred":false}],"constraints":{"requireExactQuote":true,"forbidOverlap":true},
			"instructions":"Extract tokens.","examples":[],"schema":{"type":"object"}}`, "3f382abc4d4ed315265407b89e445720ebd2905dbaa8673954740e6dca8f6ff2"},
		{`{"description":"Extract the fields.","classes":[{"name":"Zed"},{"name":"alpha","attributesSchema":{"type":"object","properties":{"alpha":{"anyOf":
			[{"type":"number"},{"const":null}]},"Zed":{"type":"string"}},"required":["a","b"]}}],"constraints":{"requireExactQuote":true,"forbidOverlap":true,
			"maxExtractionsPerShard":3},"instructions":"Extract the fields.","examples":[],"schema":{"type":"object","properties":{"alpha":{"type":"string"},
			"Zed":{"type":"string"}}}}`, "6fdbda798fc44adbd23d81e5f52001460a44a22702131328cc8c2f8cbbe6583f"},
	} {
		doc, err := schema.Decode("the program", []byte(v.program))
		if err != nil {
			t.Fatal(err)
		}
		if got := sum(schema.Canonical(doc)); got != v.sum {
			t.Errorf("got %s, want %s of %s", got, v.sum, v.program)
		}
	}
}

// A shard of ekchylisma is a window of UTF-16 units, and its identity names the document. This test records the
// formula. A request of this package omits the document, and its bodies are whole words.
func TestTheIdentityOfAShardIsKnown(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		document      string
		size, overlap int
		start, end    int
		text, sum     string
	}{
		{"doc-1", 8, 2, 0, 8, "Alpha Be", "f6ab414e208a9a6300bdf8a2459d922aed871ccd865baa696248444070916848"},
		{"doc-1", 8, 2, 6, 14, "Beta Gam", "0ee77255f94a961d55d67b293f8c5cda7fc6c601ff4dd38697a19d88d31b381f"},
		{"doc-1", 8, 2, 12, 16, "amma", "faa25d080f99f39a4a6a7a3a9387f152000dc85ce8dfb6ec613b593f20eedb08"},
		{"doc-1", 8192, 0, 0, 16, "Alpha Beta Gamma", "da37e13c827a45f792a87705b6f12a8e665d00360bab6f23344a7f860a17fc51"},
		{"doc-2", 8192, 0, 0, 16, "Alpha Beta Gamma", "64271efcc4e9b2b8849a43e5e9df6c917ef4fdde3f3fbc2ab0859b36f9a81a9d"},
		{"doc-1", 8, 2, 0, 0, "", "ffe902a12b558453f4d389a15327f031658a1102dce5fb309bdcf0133f06a3d3"},
	} {
		sha := sha256.Sum256(
			fmt.Appendf(nil,
				"programHash=%s\ndocumentId=%s\nchunkSize=%d\noverlap=%d\noffsetMode=%s\nshardStart=%d\nshardEnd=%d\nshardText=%s",
				"3f382abc4d4ed315265407b89e445720ebd2905dbaa8673954740e6dca8f6ff2", v.document, v.size, v.overlap,
				"utf16_code_unit",
				v.start, v.end, v.text))
		if got := hex.EncodeToString(sha[:]); got != v.sum {
			t.Errorf("%q of %s: got %s, want %s", v.text, v.document, got, v.sum)
		}
	}
}

func TestAProgramAndARequestHaveTheirHashes(t *testing.T) {
	t.Parallel()
	p := &Program{Instructions: "Extract tokens.", Classes: []Class{{Name: "token"}}}
	c, err := p.Compile()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Hash(), "f3f93662ff3c5d6f88c4144924710ba9eabf1a8204e3edc857afb20e38343f63"; got != want {
		t.Errorf("got the program %s, want %s", got, want)
	}
	for _, v := range []struct{ before, body, after, sum string }{
		{"", "Alpha Beta Gamma", "", "55750e0dc8fef8cc8b3ff2fe717ad62513d4db9a350540a22ef9449e9ca62023"},
		{"", "Alpha ", "Beta ", "775536245d329da9897050d4369e2b40ea9686da89beaffe63ce6d2488beda7c"},
		{"Alpha ", "Beta ", "Gamma", "a94516494f740a19678be0b527e82da70b62ff4c53bb7b4bddc409cca534ffd2"},
	} {
		r := c.Request(Window{v.before, v.body, v.after}, "", "", "fake-model", nil)
		if r.Hash != v.sum || r.Sum() != v.sum {
			t.Errorf("%q: got %s and %s, want %s", v.body, r.Hash, r.Sum(), v.sum)
		}
	}
}

func TestBodiesAreWholeWords(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		text          string
		size, context int
		want          []Window
	}{
		{"Alpha Beta Gamma", 8, 5, []Window{{"", "Alpha ", "Beta "}, {"lpha ", "Beta ", "Gamma"}, {"Beta ", "Gamma", ""}}},
		{"Alpha Beta Gamma", 8192, 0, []Window{{Body: "Alpha Beta Gamma"}}},
		{"A😀B", 2, 0, []Window{{Body: "A😀"}, {Body: "B"}}},
		{"abcdefghij", 5, 1, []Window{{"", "abcde", "f"}, {"e", "fghij", ""}}},
		{"", 8, 2, nil},
	} {
		shards, err := Cut(Normalise(v.text), v.size, v.context)
		if err != nil {
			t.Fatal(err)
		}
		var got []Window
		for _, s := range shards {
			got = append(got, s.Window)
		}
		if diff := cmp.Diff(v.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", v.text, diff)
		}
	}
}
