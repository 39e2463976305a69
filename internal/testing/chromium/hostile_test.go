package chromium

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/rules"
	"github.com/gemworker/gem/worker"
)

// payloads returns texts that run a script, load something or change the layout if a page does not treat them as plain
// text. Each has a number, so that a failed test shows which one ran.
func payloads() (all []string) {
	run := "window.ran=(window.ran||'')+'%d ';alert(%[1]d)"
	forms := []string{
		`<script>RUN</script>`, `</script><script>RUN</script>`, `</title><script>RUN</script>`,
		`</textarea><script>RUN</script>`, `</style><script>RUN</script>`,
		`--><script>RUN</script>`, `]]><script>RUN</script>`, `"><script>RUN</script>`, `'><script>RUN</script>`,
		`</pre><script>RUN</script>`,
		`<img src=x onerror="RUN">`, `"><img src=x onerror="RUN">`, `'><img src=x onerror="RUN">`,
		`<img src='x' onerror='RUN'`, `<svg onload="RUN">`, `<svg><script>RUN</script></svg>`,
		`<svg/onload=RUN>`, `<body onload="RUN">`, `<iframe srcdoc="<script>RUN</script>">`, `<iframe src="javascript:RUN">`,
		`<object data="javascript:RUN">`, `<embed src="javascript:RUN">`,
		`<details open ontoggle="RUN">`, `<input autofocus onfocus="RUN">`, `<video><source onerror="RUN"></video>`,
		`<marquee onstart="RUN">`, `<style>@import "javascript:RUN";</style>`,
		`<link rel=stylesheet href="https://evil.example/x.css">`,
		`<meta http-equiv="refresh" content="0;url=https://evil.example/">`, `<base href="https://evil.example/">`,
		`<form action="https://evil.example/"><button>`, `<img src="https://evil.example/x.png">`,
		`<a href="javascript:RUN">click</a>`, `javascript:RUN`, `JaVaScRiPt:RUN`, "java\tscript:RUN",
		`data:text/html,<script>RUN</script>`, `vbscript:RUN`, `" onmouseover="RUN" x="`, `' onfocus='RUN' autofocus='`,
		`" autofocus onfocus="RUN`, `x" onerror="RUN`, "` onload=RUN `",
		`{{constructor.constructor('RUN')()}}`, `${RUN}`, `{{.}}`, `{{template "content"}}`, `<%= RUN %>`, `#{RUN}`,
		`\u003cscript\u003eRUN\u003c/script\u003e`, `&lt;script&gt;RUN&lt;/script&gt;`,
		`&#60;script&#62;RUN&#60;/script&#62;`, `%3Cscript%3ERUN%3C/script%3E`, `<scr<script>ipt>RUN</scr</script>ipt>`,
		`<noscript><p title="</noscript><img src=x onerror=RUN>">`,
		`<math><mtext></form><form><mglyph><style></math><img src=x onerror=RUN>`,
		`<template><script>RUN</script></template>`, `<div hx-on:load="RUN" data-hx-on:load="RUN">`,
		`<div hx-get="https://evil.example/" hx-trigger="load" data-hx-get="https://evil.example/" data-hx-trigger="load">`,
		`<div hx-get="javascript:RUN" hx-trigger="load">`, `<script type=module>RUN</script>`,
		`<button formaction="javascript:RUN">`, `<x onclick="RUN" id=main>`, `<img name=getElementById><img id=body>`,
	}
	before := []string{"", "\u202e", "\u2028\u0001", "a\u2400"} // Postgres stores no NUL
	for n := range 200 {
		all = append(all, before[n/len(forms)%len(before)]+strings.ReplaceAll(forms[n%len(forms)], "RUN",
			fmt.Sprintf(run, n)))
	}
	return all
}

// harmless fails the test if the script of a payload ran. At its end, each tab checks that no dialog opened, no policy
// was violated and no request left the origin.
func (b *tab) harmless() {
	b.t.Helper()
	if ran := eval[string](b, "String(window.ran ?? '')"); ran != "" {
		b.t.Errorf("%s ran the payloads %s", b.where(), ran)
	}
}

// Scenario 9.
func TestWhateverAgentsAndToolsWroteIsText(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	all := payloads()
	type object = map[string]any
	var ids []string
	for n, p := range all {
		input, err := json.Marshal(object{"text": p, p: p, "fails": n%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		c := handlertest.Call{Tool: "shop.repeat", Input: string(input), CreatedBy: p, Session: p, Key: p}
		if n%5 == 4 {
			c.Tool = p
		}
		ids = append(ids, s.Insert(c))
	}
	every, err := json.Marshal(object{"text": strings.Join(all, "\n"), "all": all})
	if err != nil {
		t.Fatal(err)
	}
	ids = append(ids, s.Insert(of("shop.repeat", string(every))))
	for _, id := range ids {
		s.Await(id)
	}
	// A question with any approvers and any choices, and an agent that receives nonsense.
	question, err := json.Marshal(object{"text": strings.Join(all[:20], "\n"), "by": []string{"user:" + all[0]},
		"schema": object{"type": "object",
			"properties": object{all[1]: object{"type": "string", "title": all[2], "description": all[3], "enum": all[4:14]},
				all[15]: object{"type": "integer", "title": all[16]}}}})
	if err != nil {
		t.Fatal(err)
	}
	asked := s.Insert(handlertest.Call{Tool: "wait.answer", Input: string(question), CreatedBy: all[0], Session: all[0]})
	asked = s.Question(asked).ID

	origin := s.serve(ada)
	pages := []string{"/", "/calls", "/failures", "/questions", "/questions/" + asked, "/calls/" + asked, "/workers",
		"/tools", "/calls/" + ids[len(all)], "/calls?state=failed", "/calls?state=succeeded"}
	some := 10
	if os.Getenv("GEM_TEST_LONG") != "" {
		some = len(all)
	}
	for n := range some {
		n = n * len(all) / some
		q := url.QueryEscape(all[n])
		pages = append(pages, "/calls/"+ids[n], "/calls?tool="+q+"&session="+q+"&key="+q+"&caller="+q+"&code="+q,
			"/calls?find="+q, "/sessions/"+url.PathEscape(all[n]), "/tools/"+url.PathEscape(all[n]),
			"/"+url.PathEscape(all[n])+"?done="+q)
	}
	b := openTab(t, origin)
	b.expects("status of 404", "status of 400")
	b.visit("/calls")
	for b.count("main a[rel=next]") > 0 { // every payload is on one of these pages
		b.follow("main a[rel=next]")
		b.harmless()
	}
	for _, p := range pages {
		b.visit(p)
		b.harmless()
	}
}

// Scenario 9, sizes and digits.
func TestLongAndDeepAndPreciseContentsAreShownShort(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	// The maximum is 1 MiB.
	long := s.Insert(of("shop.repeat", `{"text": "a long text", "long": "`+strings.Repeat("long ", (1<<20-100)/5)+
		`", "n": 12345678901234567890.123}`))
	deep := s.Insert(of("shop.repeat", `{"text": "`+strings.Repeat("y", 100_000)+`", "deep": `+strings.Repeat("[", 1000)+
		`1`+strings.Repeat("]", 1000)+`}`))
	exact := s.Insert(of("shop.repeat", `{"text": "left \u202e right", "n": 12345678901234567890.123, "fails": true}`))
	for _, id := range []string{long, deep, exact} {
		s.Await(id)
	}
	origin := s.serve(ada)
	b := openTab(t, origin)
	for _, p := range []string{"/calls/" + long, "/calls/" + deep, "/calls/" + exact, "/calls", "/failures",
		"/sessions/none"} {
		if _, body := fetch(t, origin+p); len(body) > 200_000 {
			t.Errorf("%s has %d bytes", p, len(body))
		}
	}
	b.visit("/calls/" + exact)
	b.has("12345678901234567890.123", "left \ufffd right")
	b.visit("/calls/" + long)
	b.barrierFree("a long input")
}

// A person decides by the content of the page. Values in a rule's question must not add markup, hide text or reverse
// it.
func TestTheValuesInARulesQuestionAreShownAsText(t *testing.T) {
	t.Parallel()
	asks, err := rules.Parse(
		[]byte(`{"version": "1", "rules": [{"name": "repeats", "tools": ["shop.repeat"], "action": "ask",
		"ask": {"of": ["boss"], "question": "Repeat {text} for \"{who}\"?"}, "say": "Look twice."}]}`))
	if err != nil {
		t.Fatal(err)
	}
	s := newScene(t, func(o *handlertest.Options) {
		o.Worker = func(o *worker.Options) { o.Concurrency, o.Rules, o.Version = 8, asks, "v0.1.0" }
	})
	controls := "\u0001\u001b\u007f\u0085\u200b\u2028\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
	values := slices.Concat(payloads()[:8], []string{"pay 10\u202e001\u202c now", controls + "<b>bold</b>",
		strings.Repeat("\n \n", 500) + "end", strings.Repeat("long ", 2000)})
	var calls, questions []string
	for _, v := range values {
		input, err := json.Marshal(map[string]any{"text": v, "who": v})
		if err != nil {
			t.Fatal(err)
		}
		id := s.Insert(handlertest.Call{Tool: "shop.repeat", Input: string(input), CreatedBy: "ada"})
		calls, questions = append(calls, id), append(questions, s.Question(id).ID)
	}
	// A user's question may contain any text.
	input, err := json.Marshal(map[string]any{"text": controls + "<script>window.ran = 'asked'</script>" +
		strings.Repeat("\n", 900) + "x", "by": []string{"role:boss"}})
	if err != nil {
		t.Fatal(err)
	}
	asked := s.Insert(handlertest.Call{Tool: "wait.answer", Input: string(input), CreatedBy: "ada"})
	pages := []string{"/", "/questions", "/questions/" + s.Question(asked).ID, "/calls/" + asked}
	for n := range calls {
		pages = append(pages, "/calls/"+calls[n], "/questions/"+questions[n])
	}
	b := openTab(t, s.serve(grace))
	b.look("light", narrow)
	const hidden = `[...document.querySelectorAll("*")].flatMap(e => [...e.attributes].map(a => a.value)).concat(document.title, document.documentElement.textContent)
		.filter(t => /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/.test(t)).join("|")`
	for _, p := range pages {
		b.visit(p)
		b.harmless()
		if found := eval[string](b, hidden); found != "" {
			t.Errorf("%s has hidden characters in %q", p, found)
		}
		if wide := eval[float64](b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); wide > 0 {
			t.Errorf("%s is %v pixels too wide", p, wide)
		}
	}
	b.visit("/questions")
	if buttons := eval[float64](b,
		`Math.max(...[...document.querySelectorAll(".asked")].map(e => e.clientHeight))`); buttons > 640 {
		t.Errorf("a question is %v pixels high: its arguments are out of sight", buttons)
	}
}
