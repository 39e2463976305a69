//go:build ignore

// Command heldout writes the held-out set: documents in many languages, and answers about them that are damaged as
// models damage them. It was written before the reader had read any of its cases, and the set is frozen: heldout.jsonl
// is its output, and nothing of the reader was changed because of a case.
//
//	go run grounding/testdata/heldout.go > extract/testdata/heldout.jsonl
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"unicode/utf16"

	"golang.org/x/text/unicode/norm"
)

type span struct {
	Class string `json:"class"`
	Quote string `json:"quote"`
	Start int    `json:"start"`
	End   int    `json:"end"`
}

type testCase struct {
	ID       string   `json:"id"`
	Doc      string   `json:"doc"`
	Operator string   `json:"operator"`
	Classes  []string `json:"classes"`
	Answer   string   `json:"answer"`
	Gold     []span   `json:"gold"`
	Kind     string   `json:"kind"`
}

// document is a text in which the items are marked as ⟦class:quote⟧.
type document struct{ name, marked string }

var documents = []document{
	{"english_table", "| Part | Qty | Price |\n|---|---|---|\n| ⟦part:Hex bolt M8⟧ | 12 | ⟦price:$4.10⟧ |\n| " +
		"⟦part:Washer_8mm⟧ | 240 | ⟦price:$0.07⟧ |\n| ⟦part:Hex bolt M10⟧ | 12 | ⟦price:$4.10⟧ |\n"},
	{"german", "Sehr geehrte ⟦person:Frau Müller-Lüdenscheidt⟧, die Rechnung Nr. ⟦number:2026/0815⟧ über " +
		"⟦amount:1.234,50 €⟧ ist bis zum ⟦date:3. Mai 2026⟧ fällig. Grüße, ⟦person:Jörg Weiß⟧"},
	{"french", "Le contrat « ⟦title:Horizon d’été⟧ » a été signé par ⟦person:Élodie Lefèvre⟧ à ⟦place:Saint-Étienne⟧ " +
		"pour ⟦amount:12 000,00 €⟧ ; ⟦person:Élodie Lefèvre⟧ en garde l’original."},
	{"spanish", "¿Quién llamó? ⟦person:José Ángel Núñez⟧ dijo: “⟦statement:No habrá retraso…⟧”, y luego ⟦place:Logroño⟧ " +
		"—⟦date:5–7 de junio⟧— quedó confirmada."},
	{"turkish", "⟦person:Işıl Yıldırım⟧, ⟦place:İstanbul⟧’daki toplantıda ⟦amount:₺1.250,75⟧ ödedi. Fatura no: " +
		"⟦number:TR-2026_77⟧."},
	{"polish", "Pan ⟦person:Łukasz Żółkiewski⟧ odebrał ⟦item:3 skrzynki jabłek⟧ w ⟦place:Łodzi⟧; następne ⟦item:3 " +
		"skrzynki jabłek⟧ odbierze ⟦person:Zofia Śliwa⟧."},
	{"russian", "Договор № ⟦number:77-А/2026⟧ заключён между ООО «⟦org:Северный ветер⟧» и ⟦person:Ёлкиной А. П.⟧ на " +
		"сумму ⟦amount:85 000 руб.⟧"},
	{"greek", "Η ⟦person:Ελένη Παπαδοπούλου⟧ πλήρωσε ⟦amount:45,90 €⟧ στην ⟦place:Θεσσαλονίκη⟧. Ο ⟦person:Γιώργος⟧ δεν " +
		"πλήρωσε."},
	{"arabic", "دفعت ⟦person:ليلى حسن⟧ مبلغ ⟦amount:١٢٠٠ درهم⟧ إلى ⟦org:شركة النور⟧ في ⟦place:دبي⟧ يوم ⟦date:٣ مايو⟧."},
	{"hebrew", "⟦person:ד\"ר נועה לוי⟧ שילמה ⟦amount:‏350 ש\"ח⟧ ל⟦org:בנק הפועלים⟧ ב⟦place:ירושלים⟧."},
	{"persian", "⟦person:مهسا کریمی⟧ کتاب ⟦title:خانه‌ی ابری⟧ را به ⟦amount:۴۵۰٬۰۰۰ تومان⟧ در ⟦place:تهران⟧ خرید."},
	{"hindi", "⟦person:अनिल शर्मा⟧ ने ⟦place:दिल्ली⟧ में ⟦amount:₹2,500⟧ का भुगतान ⟦date:३ मई २०२६⟧ को किया।"},
	{"thai", "คุณ⟦person:สมชาย ใจดี⟧ซื้อ⟦item:ข้าวหอมมะลิ⟧จำนวน⟦amount:25 กิโลกรัม⟧ที่⟦place:เชียงใหม่⟧"},
	{"chinese", "患者⟦person:王小明⟧于⟦date:2026年5月3日⟧服用⟦drug:阿莫西林⟧，剂量⟦dose:500毫克⟧；随后⟦drug:阿莫西林⟧减至⟦dose:250毫克⟧。"},
	{"japanese", "⟦person:佐藤さくら⟧さんは「⟦title:雨のち晴れ⟧」を⟦amount:１，２００円⟧で⟦place:京都駅⟧の書店で買った。"},
	{"korean", "⟦person:김민준⟧은 ⟦place:서울⟧에서 ⟦item:노트북 2대⟧를 ⟦amount:3,400,000원⟧에 샀다. ⟦place:부산⟧에는 가지 않았다."},
	{"vietnamese", "Ông ⟦person:Nguyễn Văn Hùng⟧ đã trả ⟦amount:2.000.000 ₫⟧ cho ⟦org:Công ty Ánh Dương⟧ tại ⟦place:Đà " +
		"Nẵng⟧."},
	{"pdf_english", "The of\u00adfice of ⟦org:Griﬃn & Sons⟧ con\u200bfirmed\u00a0that ⟦person:Fiona O’Brien⟧ paid " +
		"⟦amount:£9,876.54⟧ for\nthe ⟦item:high‑efficiency\nfilter unit⟧ (ref ⟦number:F_10*2⟧)."},
	{"emoji_log", "10:02 👩🏽‍⚕️ ⟦person:Dr. Okafor⟧: dose is ⟦dose:5 mg⟧ ❤️\n10:05 🧑‍🔧 ⟦person:Kim⟧: dose was ⟦dose:10 " +
		"mg⟧, {\"note\": [\"⟦item:valve #3⟧\"]} 🇩🇪 done\n"},
	{"code_config", "path = ⟦path:D:\\new\\bin\\run.exe⟧\nurl = ⟦url:https://x.example/a?b=1&c=2⟧\nmode = " +
		"⟦value:\"strict\"⟧ # see {debug:[]}\nuser = ⟦value:svc_build⟧\n"},
}

// item is one of the answer, in the order of its members.
type item struct {
	class, quote string
	attributes   any
}

// operator makes an answer from the items of a document. An operator that does not suit a document returns no answer.
type operator struct {
	name string
	kind string // what must come of it
	make func(doc string, items []item) (answer string)
}

func encode(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (i item) String() string {
	attributes := i.attributes
	if attributes == nil {
		attributes = map[string]any{}
	}
	return `{"class":` + encode(i.class) + `,"quote":` + encode(i.quote) + `,"attributes":` + encode(attributes) + `}`
}

func list(items []item) string {
	parts := make([]string, len(items))
	for i, it := range items {
		parts[i] = it.String()
	}
	return "[" + strings.Join(parts, ",") + "]"
}

func object(items []item) string { return `{"extractions":` + list(items) + `}` }

// each changes the quotes. It suits a document only if it changes one at least.
func each(change func(string) string) func(string, []item) string {
	return func(_ string, items []item) string {
		changed, out := false, make([]item, len(items))
		for i, it := range items {
			out[i] = it
			out[i].quote = change(it.quote)
			changed = changed || out[i].quote != it.quote
		}
		if !changed {
			return ""
		}
		return object(out)
	}
}

func replace(pairs ...string) func(string) string { return strings.NewReplacer(pairs...).Replace }

func indent(s string) string {
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(s), "", "  "); err != nil {
		panic(err)
	}
	return b.String()
}

// cut returns the answer up to a share of its characters.
func cut(s string, share float64) string {
	r := []rune(s)
	return string(r[:int(float64(len(r))*share)])
}

var operators = []operator{
	{"own_form", "non_empty", func(_ string, items []item) string { return object(items) }},
	{"fence_between_prose", "non_empty", func(_ string, items []item) string {
		return "Sure! I went through the text [see below] and {carefully} listed all:\n\n```json\n" + indent(object(items)) +
			"\n```\n\nNote: nothing else was found, so [] would be wrong."
	}},
	{"fence_upper_no_end", "non_empty", func(_ string, items []item) string { return "```JSON\n" + object(items) }},
	{"think_with_draft", "non_empty", func(_ string, items []item) string {
		return "<think>\nFirst idea: " + object(items[:1]) + " but {\"extractions\":[]} hmm [\"x\"\n</think>\n\n" +
			object(items)
	}},
	{"thought_without_beginning", "non_empty", func(_ string, items []item) string {
		return "Perhaps {\"extractions\":[]}? No.\n</think>\n" + object(items)
	}},
	{"tool_call", "non_empty", func(_ string, items []item) string {
		return `<tool_call>{"name":"emit_extractions","arguments":` + object(items) + `}</tool_call>`
	}},
	{"tool_call_as_text", "non_empty", func(_ string, items []item) string {
		return `{"tool_calls":[{"type":"function","function":{"name":"emit","arguments":` + encode(object(items)) + `}}]}`
	}},
	{"encoded_twice", "non_empty", func(_ string, items []item) string { return encode(object(items)) }},
	{"curly_json_quotes", "non_empty", func(_ string, items []item) string {
		for _, it := range items {
			if strings.ContainsAny(it.quote, "\"\\“”") {
				return ""
			}
		}
		s, open := object(items), false
		var b strings.Builder
		for _, r := range s {
			if r == '"' {
				open = !open
				if r = '”'; open {
					r = '“'
				}
			}
			b.WriteRune(r)
		}
		return b.String()
	}},
	{"python_literals", "non_empty", func(_ string, items []item) string {
		for _, it := range items {
			if strings.ContainsAny(it.quote, "\"'\\\n") {
				return ""
			}
		}
		return strings.ReplaceAll(strings.ReplaceAll(object(items), `"attributes":{}`,
			`"attributes":{'n': None, 'sure': True}`), `"`, `'`)
	}},
	{"comments", "non_empty", func(_ string, items []item) string {
		s := indent(object(items))
		s = strings.Replace(s, "\n", "\n  // what I found, in order: [1, 2]\n", 1)
		return strings.Replace(s, `"quote":`, `/* verbatim } */ "quote":`, 1)
	}},
	{"not_a_number", "non_empty", func(_ string, items []item) string {
		return strings.ReplaceAll(object(items), `"attributes":{}`, `"attributes":{"score":NaN,"low":-Infinity}`)
	}},
	{"commas_and_controls", "non_empty", func(_ string, items []item) string {
		s := strings.ReplaceAll(object(items), "},{", "},\x02\x1f ,{")
		return strings.Replace(s, "}]}", ",},]\x00,}", 1)
	}},
	{"raw_line_ends", "non_empty", func(_ string, items []item) string {
		return strings.ReplaceAll(object(items), `"attributes":{}`, "\"attributes\":{\"why\":\"because\r\n\tit says \\so\"}")
	}},
	{"escaped_punctuation", "non_empty", func(_ string, items []item) string {
		s := object(items)
		t := strings.NewReplacer("_", `\_`, "*", `\*`, "#", `\#`, "-", `\-`, "$", `\$`).Replace(s)
		if s == t {
			return ""
		}
		return t
	}},
	{"escaped_apostrophe", "non_empty", func(_ string, items []item) string {
		s := object(items)
		if t := strings.ReplaceAll(s, "’", `\'`); t != s {
			return t
		}
		return ""
	}},
	{"bare_inner_quotes", "non_empty", func(_ string, items []item) string {
		s := object(items)
		if t := strings.ReplaceAll(s, `\"`, `"`); t != s {
			return t
		}
		return ""
	}},
	{"reversed", "non_empty", func(_ string, items []item) string {
		seen := map[string]string{}
		for _, it := range items {
			if class, ok := seen[it.quote]; ok && class != it.class {
				return ""
			}
			seen[it.quote] = it.class
		}
		var back []item
		for i := range items {
			back = append(back, items[len(items)-1-i])
		}
		return object(back)
	}},
	{"lines_of_objects", "non_empty", func(_ string, items []item) string {
		var lines []string
		for _, it := range items {
			lines = append(lines, it.String())
		}
		return strings.Join(lines, "\n")
	}},
	{"list_in_prose", "non_empty", func(_ string, items []item) string {
		return "Result (an empty [] was not needed):\n" + list(items) + "\nDone."
	}},
	{"three_drafts", "non_empty", func(_ string, items []item) string {
		return "Draft 1: " + object(items[:1]) + "\nDraft 2: " +
			object([]item{{class: items[0].class, quote: "zzz not there"}}) + "\nFinal: " + object(items)
	}},
	{"decomposed", "non_empty", each(norm.NFD.String)},
	{"composed_spaces", "non_empty", func(_ string, items []item) string {
		return each(func(q string) string { return strings.ReplaceAll(q, " ", "\u202f\n ") })("", items)
	}},
	{"plain_punctuation", "non_empty", each(replace("’", "'", "‘", "'", "“", `"`, "”", `"`, "–", "-", "‑", "-", "—", "-",
		"…", "...", "\u00a0", " ", "\n", " "))},
	{"plain_letters", "non_empty", each(replace("ﬃ", "ffi", "ﬁ", "fi", "１", "1", "２", "2", "０", "0", "，", ",", "\u200c",
		"", "\u200f", "", "‑", "-"))},
	{"marks_of_direction", "non_empty", func(_ string, items []item) string {
		return each(func(q string) string { return "\u200f" + q + "\u200e" })("", items)
	}},
	{"upper_case", "non_empty", func(_ string, items []item) string {
		for _, it := range items {
			if strings.ContainsAny(it.quote, "ßıİıi") { // whose case depends on the language
				return ""
			}
		}
		return each(strings.ToUpper)("", items)
	}},
	{"html_entities", "non_empty", each(replace("&", "&amp;", `"`, "&quot;"))},
	{"wrong_offsets", "non_empty", func(_ string, items []item) string {
		return strings.ReplaceAll(object(items), `"attributes":{}`, `"charStart":-3,"charEnd":"7","span":{"start":1e9}`)
	}},
	{"one_of_each_fault", "non_empty", func(_ string, items []item) string {
		s := object(items)
		return s[:len(s)-2] + `,{"class":"never_declared","quote":` + encode(items[0].quote) + `},{"class":` +
			encode(items[0].class) + `,"quote":""},7,"text",[],{"class":` +
			encode(items[0].class) + `,"quote":"Xyzzy Plugh"},{"quote":` + encode(items[0].quote) + `}]}`
	}},
	{"brackets_after", "non_empty", func(_ string, items []item) string { return object(items) + " }]} ```" }},
	{"same_twice", "non_empty", func(_ string, items []item) string {
		return object(append(append([]item{}, items...), items...))
	}},
	{"invented_only", "failure", func(_ string, items []item) string {
		return object([]item{{class: items[0].class, quote: "Qwertz Uiop"}, {class: items[0].class, quote: "§§ 99"}})
	}},
	{"cut_in_quote", "failure", func(_ string, items []item) string {
		s := object(items)
		at := strings.LastIndex(s, `"quote":"`) + len(`"quote":"`)
		return s[:at] + string([]rune(s[at:])[:1])
	}},
	{"cut_after_item", "failure", func(_ string, items []item) string { return strings.TrimSuffix(object(items), "]}") }},
	{"cut_before_last_bracket", "failure", func(_ string, items []item) string {
		return strings.TrimSuffix(object(items), "}")
	}},
	{"cut_in_fence", "failure", func(_ string, items []item) string {
		return "Here:\n```json\n" + cut(indent(object(items)), 0.6)
	}},
	{"cut_after_empty_draft", "failure", func(_ string, items []item) string {
		return "{\"extractions\":[]}\nNo, there is something:\n" + cut(object(items), 0.5)
	}},
	{"cut_list", "failure", func(_ string, items []item) string { return cut(list(items), 0.7) }},
	{"cut_encoded_twice", "failure", func(_ string, items []item) string { return cut(encode(object(items)), 0.7) }},
	{"cut_in_thought", "failure", func(_ string, items []item) string {
		return "<think>I could say {\"extractions\":[]} or " + object(items[:1]) + " but"
	}},
	{"refused", "failure", func(string, []item) string {
		return "I'm sorry, but I can't help with extracting personal data. If nothing applies, [] is what I would return."
	}},
	{"prose_only", "failure", func(_ string, items []item) string {
		return "The text mentions " + items[0].quote + " (" + items[0].class + ")."
	}},
	{"nothing", "failure", func(string, []item) string { return " \n" }},
	{"other_key", "failure", func(_ string, items []item) string { return `{"results":` + list(items) + `,"count":3}` }},
	{"empty_in_fence", "empty_by_evidence", func(string, []item) string {
		return "```json\n{\n  \"extractions\": []\n}\n```"
	}},
	{"empty_list_alone", "empty_by_evidence", func(string, []item) string { return "\ufeff [ ]\n" }},
	{"empty_in_tool_call", "empty_by_evidence", func(string, []item) string {
		return `{"name":"emit_extractions","arguments":{"extractions":[]}}`
	}},
	{"empty_with_prose", "empty_by_evidence", func(string, []item) string {
		return "There is nothing of that kind.\n\n{\"extractions\": []}"
	}},
}

func main() {
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	cases := 0
	for d, document := range documents {
		doc, gold := unmark(document.marked)
		var items []item
		classes := []string{}
		seen := map[string]bool{}
		for _, g := range gold {
			items = append(items, item{class: g.Class, quote: g.Quote})
			if !seen[g.Class] {
				classes = append(classes, g.Class)
			}
			seen[g.Class] = true
		}
		for o, op := range operators {
			// Operators that suit few documents are asked of all. The others take turns, so that each meets several languages.
			answer := op.make(doc, items)
			if answer == "" {
				continue
			}
			if !rare[op.name] && (o+d)%4 != 0 {
				continue
			}
			c := testCase{ID: document.name + "/" + op.name, Doc: doc, Operator: op.name, Classes: classes, Answer: answer,
				Gold: []span{}, Kind: op.kind}
			if op.kind == "non_empty" {
				c.Gold = gold
			}
			if err := out.Encode(c); err != nil {
				panic(err)
			}
			cases++
		}
	}
	fmt.Fprintln(os.Stderr, cases, "cases of", len(documents), "documents and", len(operators), "operators")
}

var rare = map[string]bool{"escaped_punctuation": true, "escaped_apostrophe": true, "bare_inner_quotes": true,
	"plain_letters": true, "html_entities": true,
	"plain_punctuation": true, "upper_case": true, "decomposed": true}

// unmark returns a text without its marks, and the items with their offsets in UTF-16.
func unmark(marked string) (doc string, gold []span) {
	var b strings.Builder
	for marked != "" {
		before, rest, ok := strings.Cut(marked, "⟦")
		b.WriteString(before)
		if !ok {
			break
		}
		class, rest, _ := strings.Cut(rest, ":")
		quote, rest, _ := strings.Cut(rest, "⟧")
		start := len(utf16.Encode([]rune(b.String())))
		gold = append(gold, span{class, quote, start, start + len(utf16.Encode([]rune(quote)))})
		b.WriteString(quote)
		marked = rest
	}
	return b.String(), gold
}
