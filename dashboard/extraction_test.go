package dashboard_test

import (
	"encoding/json"
	"fmt"
	"html"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/internal/testing/llmtest"
)

// tokens answers like a model that quotes each word T1, T2 and so on, and one quote that is not in the text.
func tokens(r *llmtest.Request) llmtest.Script {
	items := []object{{"class": "token", "quote": "never written"}}
	for _, q := range regexp.MustCompile(`\bT\d+\b`).FindAllString(r.Asked.Messages[0].Content[0].Text, -1) {
		items = append(items, object{"class": "token", "quote": q}, object{"class": "line", "quote": q + " <b>&"})
	}
	encoded, _ := json.Marshal(object{"extractions": items})
	return llmtest.Say(string(encoded))
}

func TestQuotesAreMarkedInTheirDocument(t *testing.T) {
	t.Parallel()
	s := start(t, llmtest.Options{Answer: tokens})
	// About 40 KB of text with characters of one to four bytes, so that each unit counts differently.
	var b strings.Builder
	for i := 1; i <= 12; i++ {
		fmt.Fprintf(&b, "😀 é %s\nT%d <b>& is here.\n%s\n\n", hostile, i, strings.Repeat("ü ", 1600))
	}
	document := b.String()
	s.execute(t, "insert into extract_documents (id) values ('0190a000-0000-7000-8000-000000000001')")
	half := len(document) / 2
	for !utf8.RuneStart(document[half]) {
		half++
	}
	for _, part := range []string{document[:half], document[half:]} {
		s.execute(t, "insert into extract_document_parts (document_id, text) values "+
			"('0190a000-0000-7000-8000-000000000001', $1)", part)
	}
	program := object{"instructions": "Find.", "classes": []object{{"name": "token"}, {"name": "line"}}}
	run := func(more object) string {
		in := object{"program": program, "chunk": object{"size": 30000}}
		for k, v := range more {
			in[k] = v
		}
		encoded, _ := json.Marshal(in)
		return string(encoded)
	}
	for _, unit := range []string{"utf16", "codepoint", "byte"} {
		r := s.Run(handlertest.Call{Tool: "extract.run",
			Input: run(object{"document_id": "0190a000-0000-7000-8000-000000000001", "offsets": unit}), Session: "s"})
		if r.Status != "succeeded" {
			t.Fatalf("%s: %s", r.Status, r.Result)
		}
		path := "/calls/" + r.CallID + "/extraction"
		body := shows(t, s.operator, path, 200, []string{"<strong>24</strong> quotes", "Checked:", `id="q1"`, "token",
			"quote_not_found", "word for word", "Piece 1 of",
			`<mark title="1 token, 2 line" data-n="1">T1</mark>`, `<mark title="2 line" data-n="2"> &lt;b&gt;&amp;</mark>`},
			"<b>&")
		// Each quote leads to its mark.
		links := regexp.MustCompile(`href="(\?[^"]*)#(q\d+)"`).FindAllStringSubmatch(body, -1)
		if len(links) != 24 {
			t.Fatalf("%s: %d links", unit, len(links))
		}
		for _, l := range []int{0, 11, 23} {
			shows(t, s.operator, path+html.UnescapeString(links[l][1]), 200, []string{`id="` + links[l][2] + `"`})
		}
		shows(t, s.operator, path+"?class=line", 200, []string{"1 to 12 of 12<",
			`<mark title="2 line" data-n="2">T1 &lt;b&gt;&amp;</mark>`})
		shows(t, s.viewer, path, 200, []string{"Only operators see"}, "T1", "token")
	}
	// The document grows: the text that was read keeps its place.
	s.execute(t, "insert into extract_document_parts (document_id, text) values "+
		"('0190a000-0000-7000-8000-000000000001', 'T99 was added later.')")
	_, sessions := get(t, s.operator, "/sessions?id=s")
	path := regexp.MustCompile(`/calls/[0-9a-f-]+/extraction`).FindString(sessions)
	shows(t, s.operator, path+"?piece=99", 200, []string{"Checked:"}, "T99")
	// The page detects changes by hand.
	s.execute(t, "alter table extract_document_parts disable trigger user; update extract_document_parts set text = "+
		"replace(text, 'T3 ', 'T0 ')")
	shows(t, s.operator, path, 200, []string{"its hash is different", "2 quotes are not where", "not at that place"},
		"Checked:")
	s.execute(t, "delete from extract_document_parts")
	shows(t, s.operator, path, 200, []string{"no longer exists", "T12"})
	shows(t, s.operator, path+"?piece=x", 400, []string{"piece must be a number"})

	// A failed run shows the reason, and so does a run without quotes in the text.
	failed := s.Run(handlertest.Call{Tool: "extract.run", Input: run(object{"text": hostile})})
	shows(t, s.operator, "/calls/"+failed.CallID+"/extraction", 200,
		[]string{"extraction_ungrounded", "quote_not_found", "No quotes", "Checked:"})
	open := s.Insert(handlertest.Call{Tool: "extract.run", Input: run(object{"text": "T1"}),
		RunAt: time.Now().Add(time.Hour)})
	shows(t, s.operator, "/calls/"+open+"/extraction", 200, []string{"It has not ended"})
	shows(t, s.operator, "/calls/0190a000-0000-7005-8000-000000000000/extraction", 404, nil)
}
