package extract

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gemworker/gem/grounding"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/provider/router"
)

// output is the output of extract.run.
type output struct {
	Document      document              `json:"document"`
	ProgramHash   string                `json:"program_hash"`
	Models        []string              `json:"models"` // that answered
	Kind          kind                  `json:"result_kind"`
	Completeness  completeness          `json:"completeness"`
	Extractions   []grounding.FoundItem `json:"extractions"` // text[start:end] is the quote
	RejectedCount int                   `json:"rejected_count"`
	Rejected      []grounding.Refusal   `json:"rejected"`
	Shards        []shard               `json:"shards"`
	Normalisation []grounding.Change    `json:"normalisation"`
	Usage         runUsage              `json:"usage"`
}

// document is the original text.
type document struct {
	SHA256  string         `json:"sha256"`
	Length  int            `json:"length"` // in the unit of Offsets
	Offsets grounding.Unit `json:"offsets"`
	ID      string         `json:"document_id,omitempty"`
}

// kind is the kind of a result: whether there is one, and otherwise whether the text or a failure is the reason.
type kind string

const (
	nonEmpty        kind = "non_empty"
	emptyByEvidence kind = "empty_by_evidence" // every shard was read, and nothing was claimed
	emptyByFailure  kind = "empty_by_failure"
)

type completeness struct {
	Kind   string `json:"kind"` // complete, partial
	Shards int    `json:"shards"`
	Read   int    `json:"read"`
	Failed int    `json:"failed"`
}

// shard is a piece of the text with a separate answer. A shard whose answer was cut off comes before its halves, which
// have the same index.
type shard struct {
	Index   int     `json:"index"`
	Start   int     `json:"start"`
	End     int     `json:"end"`
	CallID  string  `json:"call_id,omitempty"`
	Status  string  `json:"status"` // read, failed, divided, blank
	Cached  bool    `json:"cached"`
	Calls   int     `json:"calls"` // requested answers
	Covered float64 `json:"covered"`
	Code    string  `json:"code,omitempty"`
}

const (
	statusRead    = "read"
	statusFailed  = "failed"
	statusDivided = "divided"
	statusBlank   = "blank"
)

type runUsage struct {
	usage
	CachedShards int `json:"cached_shards"`
}

// The limits of a receipt's lists.
const (
	mostRejected = 100
	mostFailed   = 50
)

// result is the result of all pieces.
func (r *run) result() (output, error) {
	unit := cmp.Or(r.in.Offsets, grounding.UTF16)
	index := r.text.Index(unit)
	out := output{Document: document{SHA256: sum(r.given), Length: index.Len(), Offsets: unit, ID: r.in.DocumentID},
		ProgramHash: r.program.Hash(),
		Models:      []string{}, Shards: []shard{}, Normalisation: append([]grounding.Change{}, r.text.Changes()...)}
	var parts []grounding.Part
	claimed := 0
	for _, p := range r.pieces {
		s := shard{Index: p.Index, Start: index.At(r.text.Given(p.Start)), End: index.At(r.text.Given(p.End)),
			Status: p.status(), Cached: p.cached,
			Calls: p.usage.LLMCalls, Code: p.code}
		if p.child != nil {
			s.CallID = p.child.ID()
		}
		if s.Status == statusRead {
			parts = append(parts, grounding.Part{Shard: p.Shard, Reading: p.reading})
			claimed += p.reading.Claimed
			s.Covered = grounding.Covered(p.Window, p.reading.Items)
		}
		out.count(p, &s)
		out.Shards = append(out.Shards, s)
	}
	out.Usage.settle()
	out.Extractions, out.Rejected = grounding.Merge(r.text, unit, parts)
	out.RejectedCount = len(out.Rejected)
	out.Rejected = out.Rejected[:min(len(out.Rejected), mostRejected)]
	if at := misquoted(r.given, unit, out.Extractions); at >= 0 {
		return output{}, handlers.Fail("misquoted", fmt.Sprintf(
			"The extraction at %d differs from the document. This is a bug in GEM: please report it.", at))
	}
	out.judge(claimed)
	return out, out.failure(r.in.AllowPartial, claimed)
}

func (p *piece) status() string {
	switch {
	case p.divided:
		return statusDivided
	case p.code != "":
		return statusFailed
	case p.child == nil:
		return statusBlank
	}
	return statusRead
}

// count adds a piece to the sums.
func (o *output) count(p *piece, s *shard) {
	o.Usage.add(&p.usage)
	if p.cached {
		o.Usage.CachedShards++
	}
	for _, m := range p.out.Models {
		if !slices.Contains(o.Models, m) {
			o.Models = append(o.Models, m)
		}
	}
	if s.Status == statusDivided {
		return
	}
	o.Completeness.Shards++
	if s.Status == statusFailed {
		o.Completeness.Failed++
	} else {
		o.Completeness.Read++
	}
}

// judge returns the kind of the result. The text is the reason for an empty result only if everything was read and
// nothing was claimed.
func (o *output) judge(claimed int) {
	o.Completeness.Kind = "complete"
	if o.Completeness.Failed > 0 {
		o.Completeness.Kind = "partial"
	}
	switch {
	case len(o.Extractions) > 0:
		o.Kind = nonEmpty
	case o.Completeness.Failed > 0 || o.RejectedCount > 0 || claimed > 0:
		o.Kind = emptyByFailure
	default:
		o.Kind = emptyByEvidence
	}
}

// failure returns the error for a missing result, or nil if there is a result.
func (o *output) failure(allowPartial bool, claimed int) error {
	failed := o.Completeness.Failed
	switch {
	case failed > 0 && (!allowPartial || failed == o.Completeness.Shards):
		return o.incomplete()
	case len(o.Extractions) == 0 && (o.RejectedCount > 0 || claimed > 0):
		why := "see details.rejected"
		if o.RejectedCount == 0 {
			why = "all begin in the context of a shard, and the shards that have them claimed nothing. Another chunk.size " +
				"lets the model look again"
		}
		return o.fail(ungrounded, "", fmt.Sprintf("The model claimed %d items, and none of them counts: %s.", claimed, why))
	}
	if n := value.Size(o); n > mostResult {
		return o.fail(resultTooLarge, "", fmt.Sprintf("The result takes %d bytes, and may take %d: divide the document. "+
			"All shards were read, and cost nothing when they are read again.", n, mostResult))
	}
	return nil
}

// incomplete returns the failure of a run with unread shards.
func (o *output) incomplete() error {
	code, codes := incomplete, map[string]int{}
	for _, s := range o.Shards {
		if s.Status != statusFailed {
			continue
		}
		codes[s.Code]++
		if s.Code == budgetExhausted {
			code = budgetExhausted
		}
	}
	were, these := "shards were", "these shards run"
	if o.Completeness.Shards == 1 {
		were = "shard was"
	}
	if o.Completeness.Failed == 1 {
		these = "this shard runs"
	}
	unread := fmt.Sprintf("%d of %d %s not read (%s).", o.Completeness.Failed, o.Completeness.Shards, were, list(codes))
	next := fmt.Sprintf("make the same call again: only %s", these)
	if code == budgetExhausted {
		next = fmt.Sprintf("make the call again with a higher max_llm_calls: only %s", these)
		unread = "max_llm_calls is spent. " + unread
	}
	return o.fail(code, next, unread+" "+upper(next)+"."+persistent(codes))
}

// remedies are advice against failures that the same call is likely to meet again.
var remedies = []struct{ code, remedy string }{
	{grounding.Truncated, "a smaller chunk.size"},
	{grounding.AnswerTooLarge, "a smaller chunk.size"},
	{router.ContextTooLong, "a smaller chunk.size"},
	{refused, "another route"},
	{router.ProviderRefused, "another route"},
}

func persistent(codes map[string]int) (text string) {
	for _, r := range remedies {
		if codes[r.code] > 0 {
			text += fmt.Sprintf(" If %s comes back, try %s.", r.code, r.remedy)
		}
	}
	return text
}

func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

func list(codes map[string]int) string {
	var counts []string
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		counts = append(counts, fmt.Sprintf("%d %s", codes[code], code))
	}
	return strings.Join(counts, ", ")
}

// fail returns a failure with the progress of the run.
func (o *output) fail(code, next, message string) error {
	failed := []shard{}
	for _, s := range o.Shards {
		if s.Status == statusFailed && len(failed) < mostFailed {
			failed = append(failed, s)
		}
	}
	details := map[string]any{"document": o.Document, "program_hash": o.ProgramHash, "models": o.Models,
		"completeness": o.Completeness, "result_kind": o.Kind, "found": len(o.Extractions),
		"rejected_count": o.RejectedCount, "rejected": o.Rejected, "usage": o.Usage}
	if len(failed) > 0 {
		details["failed_shards"] = failed
		details["next"] = next
	}
	return &handlers.Failure{Code: code, Message: message, Details: details}
}

// misquoted returns the beginning of the first extraction whose quote is not in the text at that place, or -1. It
// counts independently of all other code. The extractions are in the order of their beginnings.
func misquoted(text string, unit grounding.Unit, all []grounding.FoundItem) int {
	at, count := 0, 0 // of the character that comes next, in bytes and in units
	for _, f := range all {
		for count < f.Start && at < len(text) {
			_, n := utf8.DecodeRuneInString(text[at:])
			count += length(text[at:at+n], unit)
			at += n
		}
		if count != f.Start || !strings.HasPrefix(text[at:], f.Quote) || f.End-f.Start != length(f.Quote, unit) ||
			f.Quote == "" {
			return f.Start
		}
	}
	return -1
}

// length returns the length of a text in a unit.
func length(text string, unit grounding.Unit) int {
	switch unit {
	case grounding.Byte:
		return len(text)
	case grounding.CodePoint:
		return utf8.RuneCountInString(text)
	}
	n := 0
	for _, c := range text {
		n += utf16.RuneLen(c)
	}
	return n
}
