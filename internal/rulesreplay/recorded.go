package rulesreplay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/rules"
)

// recomputed computes the decisions on one call again, each independently, from the rows that other calls had in the
// counters.
type recomputed struct {
	*log
	*call
	report  *Report
	unknown map[string]bool
	running []string // the rules on calls that run at the same time, which are not computed again
}

// slack is how long after its time the end of a call may be committed. A gate may not have seen an end until then.
const slack = time.Minute

// all computes every logged decision on the call again.
func (r *recomputed) all() {
	for _, e := range r.Events {
		if e.Event == "delayed" {
			r.delayed(e)
		} else {
			r.asked(e)
		}
	}
	r.counted()
	r.ended()
}

// by returns the program of a worker: from the worker's row, or else from other records.
func (r *recomputed) by(worker, version string) (program, bool) {
	p, known := r.workers[worker]
	if version != "" {
		p.rules = version
	} else if !known {
		return p, false
	}
	if p.registry == "" && r.Receipt != nil {
		p.registry = r.Receipt.Registry
	}
	return p, true
}

// judgement returns the verdict of a program's rules on the call itself.
func (r *recomputed) judgement(p program) (judgement rules.Judgement, known bool) {
	j, known := r.judge(p)
	if !known {
		r.unknown[versionLost] = true
		return judgement, false
	}
	if j == nil {
		return judgement, true
	}
	seen, found := r.rulesCall(r.call, p.registry)
	if !found {
		r.unknown[toolLost] = true
		return judgement, false
	}
	judgement = j.Judge(seen)
	judgement.Checks = slices.DeleteFunc(judgement.Checks, func(c rules.Check) bool {
		if c.Kind == rules.AtOnce {
			r.running = append(r.running, c.Rule)
		}
		return c.Kind == rules.AtOnce
	})
	return judgement, true
}

// claimer returns the worker that held the call at a time.
func (r *recomputed) claimer(at time.Time) (worker string) {
	for _, e := range r.Claims {
		if !e.At.After(at) {
			worker = e.Worker
		}
	}
	return worker
}

// delayed computes a delay again.
func (r *recomputed) delayed(e event) {
	version := ""
	for counter, i := range r.places[r.ID] {
		if row := r.runs[counter][i]; row.delayed && row.At.Equal(e.Data.RunAt) {
			version = row.version
		}
	}
	if version == "" {
		r.unknown[startMissed] = true
		return
	}
	p, known := r.by(e.Worker, version)
	if !known {
		r.unknown[versionLost] = true
		return
	}
	judgement, known := r.judgement(p)
	if !known {
		return
	}
	said := func(waits []string, start time.Time) string {
		return "delayed to " + moment(start) + " by " + strings.Join(waits, ", ")
	}
	r.compare(p, e.At, said(e.Data.Rules, e.Data.RunAt), judgement, looks{now: e.At}, func(a rules.Answer) string {
		if a.Outcome != rules.Delayed {
			return string(a.Outcome)
		}
		return said(names(judgement, a, rules.Wait), a.StartsAt)
	})
}

// asked computes again which people the call waits for.
func (r *recomputed) asked(e event) {
	version := ""
	if r.Receipt != nil && len(r.Claims) > 0 && r.Claims[len(r.Claims)-1].Worker == e.Worker {
		version = r.ruling().Version
	}
	p, known := r.by(e.Worker, version)
	if !known {
		r.unknown[versionLost] = true
		return
	}
	judgement, known := r.judgement(p)
	if !known {
		return
	}
	said := func(asks []string) string { return "asked by " + strings.Join(asks, ", ") }
	r.compare(p, e.At, said(e.Data.Rules), judgement, looks{now: e.At}, func(a rules.Answer) string {
		if a.Outcome != rules.Asked {
			return string(a.Outcome)
		}
		return said(names(judgement, a, rules.Ask))
	})
}

// names returns the rules that met a call with an action, and were not answered.
func names(j rules.Judgement, a rules.Answer, action rules.Action) (all []string) {
	for _, met := range a.Met {
		check := j.Checks[met.Check]
		if check.Action == action && !slices.ContainsFunc(a.Approvals,
			func(given receipts.Approval) bool { return given.Digest == check.Digest && check.Digest != "" }) {
			all = append(all, check.Rule)
		}
	}
	return all
}

// counted computes again that the call was let through, if it has places in counters.
func (r *recomputed) counted() {
	at := map[time.Time]string{} // the version that counted it
	for counter, i := range r.places[r.ID] {
		rows := r.runs[counter]
		row := rows[i]
		if row.delayed {
			continue
		}
		at[row.At] = row.version
		ahead := i > 0 && !row.At.After(rows[i-1].At) // after the clock went back
		if r.Receipt != nil && row.At.After(r.Receipt.CreatedAt) && !ahead {
			p, _ := r.by("", row.version)
			r.differ(p, row.At, "counted in "+counter+" at "+moment(row.At),
				"it ended at "+moment(r.Receipt.CreatedAt)+", before that")
		}
	}
	for _, now := range slices.SortedFunc(maps.Keys(at), time.Time.Compare) {
		p, known := r.by(r.claimer(now), at[now])
		if !known {
			r.unknown[versionLost] = true
			continue
		}
		judgement, known := r.judgement(p)
		if !known {
			continue
		}
		r.compare(p, now, r.placesOf(p.rules), judgement, looks{now: now}, func(a rules.Answer) string {
			if a.Outcome != rules.Passed {
				return string(a.Outcome)
			}
			var counters []string
			for _, check := range judgement.Checks {
				if check.Counter != "" {
					counters = append(counters, check.Counter)
				}
			}
			for _, counter := range counters { // a place under another version also counts for this one
				if row, has := r.own(counter, r.ID); has && row.version != p.rules {
					counters = slices.DeleteFunc(counters, func(c string) bool { return c == counter })
				}
			}
			return countedIn(counters)
		})
	}
}

// placesOf describes where the rules of a version counted the call.
func (r *recomputed) placesOf(version string) string {
	var counters []string
	for counter, i := range r.places[r.ID] {
		if r.runs[counter][i].version == version {
			counters = append(counters, counter)
		}
	}
	return countedIn(counters)
}

func countedIn(counters []string) string {
	slices.Sort(counters)
	return "counted in " + strings.Join(slices.Compact(counters), "; ")
}

// unjudged are the ends of calls that may not have been judged.
var unjudged = []receipts.Code{receipts.UnknownTool, receipts.NotAllowed, receipts.ValidationError, receipts.Cancelled,
	receipts.OutcomeUnknown,
	receipts.WorkerLost, receipts.KeyReused, receipts.KeyDeadlock, receipts.Timeout}

// ruled are the ends that rules cause.
var ruled = []receipts.Code{receipts.RuleBlocked, receipts.LimitReached, receipts.ApprovalDenied,
	receipts.ApprovalExpired, receipts.RuleError}

func (r *recomputed) ruling() receipts.Rules {
	var effects receipts.Effects
	if r.Receipt == nil || json.Unmarshal(r.Receipt.Effects, &effects) != nil || effects.Rules == nil {
		return receipts.Rules{}
	}
	return *effects.Rules
}

// ended computes the receipt's part on rules again.
func (r *recomputed) ended() {
	if r.Receipt == nil {
		return
	}
	recorded := r.ruling()
	code := receipts.Code(r.Receipt.Code)
	byRules := slices.Contains(ruled, code)
	if recorded.Version == "" && !byRules && (slices.Contains(unjudged, code) || r.Receipt.Status == "not_configured") {
		return
	}
	p, known := r.endedBy(recorded)
	if !known {
		if r.anyRule() {
			r.unknown[versionLost] = true
		}
		return
	}
	judgement, known := r.judgement(p)
	if !known {
		return
	}
	if slices.ContainsFunc(recorded.Verdicts,
		func(v receipts.Verdict) bool { return slices.Contains(r.running, v.Rule) }) {
		r.unknown[placesTaken] = true
		return
	}
	last := r.endedIn(p)
	onEnd, known := r.judge(last)
	if !known {
		r.unknown[versionLost] = true
		return
	}
	before, after := r.split(onEnd, last, recorded.Verdicts)
	if r.Receipt.ReplayOf != "" && len(judgement.Checks) > 0 { // the key took precedence
		judgement.Checks, judgement.Verdicts = nil, nil
	}
	now := r.judgedAt(recorded.At)
	if now.IsZero() && needsTime(judgement) && byRules {
		r.unknown[timeLost] = true
		return
	}
	if now.IsZero() {
		now = r.lastJudgedFrom()
	}
	if !byRules || slices.ContainsFunc(after, func(v receipts.Verdict) bool { return v.Action == rules.Block }) {
		code = ""
	}
	r.compare(p, now, said(code, before, recorded.Approvals), judgement,
		looks{now: now, retried: true, named: named(before)},
		func(a rules.Answer) string {
			ruling := judgement.Rule(p.rules, a)
			if a.Outcome == rules.Asked || a.Outcome == rules.Delayed {
				return string(a.Outcome)
			}
			text := said(receipts.Code(ruling.Code), rules.OnReceipt(ruling.Verdicts), a.Approvals)
			for _, check := range judgement.Checks {
				if _, has := r.own(check.Counter, r.ID); a.Outcome == rules.Passed && check.Counter != "" && !has {
					text += "; counted in " + check.Counter
				}
			}
			return text
		})
	r.resultOf(last, onEnd, now, after)
}

// named returns the receipts of failures that verdicts name.
func named(verdicts []receipts.Verdict) (ids []string) {
	for _, v := range verdicts {
		if v.Seen != nil {
			ids = append(ids, v.Seen.Receipts...)
		}
	}
	return ids
}

// endedBy returns the program that judged the call last. The call's places determine it, or else the workers that held
// the call, if they all judge alike.
func (r *recomputed) endedBy(recorded receipts.Rules) (p program, known bool) {
	version, last := recorded.Version, time.Time{}
	for counter, i := range r.places[r.ID] {
		if row := r.runs[counter][i]; recorded.Version == "" && row.At.After(last) {
			version, last = row.version, row.At
		}
	}
	if version == "" {
		for i, e := range r.Claims {
			w, known := r.workers[e.Worker]
			if !known || i > 0 && w.rules != version {
				return p, false
			}
			version = w.rules
			if r.judging() == i {
				break
			}
		}
	}
	p = program{rules: version, registry: cmp.Or(r.Receipt.Registry, r.workers[r.Receipt.Worker].registry)}
	if i := r.judging(); i >= 0 && i < len(r.Claims)-1 {
		w, known := r.workers[r.Claims[i].Worker]
		p.registry = w.registry
		return p, known
	}
	return p, true
}

// judging returns the index of the claim after which the call was judged last, which is the one before its first
// progress, or -1 if no worker judged the call.
func (c *call) judging() int {
	i := slices.IndexFunc(c.Claims, func(e event) bool { return e.Data.Begun })
	if i < 0 {
		i = len(c.Claims)
	}
	return i - 1
}

// endedIn returns the program that judged the handler's result. It differs from the program that judged the call if a
// deploy happened in between.
func (r *recomputed) endedIn(judged program) program {
	if r.judging() == len(r.Claims)-1 {
		return judged
	}
	last := program{rules: judged.rules, registry: cmp.Or(r.Receipt.Registry, judged.registry)}
	if w, known := r.workers[r.Receipt.Worker]; known {
		last.rules = w.rules
	}
	return last
}

// anyRule reports whether a recorded version has a rule for the call.
func (r *recomputed) anyRule() bool {
	for version := range r.rules {
		p := program{rules: version, registry: cmp.Or(r.Receipt.Registry, r.latest)}
		seen, found := r.rulesCall(r.call, p.registry)
		if j, known := r.judge(p); !found || !known || len(j.Judge(seen).Checks)+len(j.Judge(seen).Verdicts) > 0 ||
			j.OnResult(seen.Tool) {
			return true
		}
	}
	return false
}

// split separates the verdicts on the call itself from those on its handler's result.
func (r *recomputed) split(j *rules.Judge, p program, verdicts []receipts.Verdict) (before, after []receipts.Verdict) {
	if j == nil {
		return verdicts, nil
	}
	onResult := map[string]bool{}
	for _, rule := range r.rules[p.rules].set.Rules() {
		onResult[rule.Name] = rule.OnResult()
	}
	for _, v := range verdicts {
		if onResult[v.Rule] {
			after = append(after, v)
		} else {
			before = append(before, v)
		}
	}
	return before, after
}

// judgedAt returns when the call was last judged, as far as it is known: from the receipt, or from the call's place.
func (r *recomputed) judgedAt(said time.Time) time.Time {
	if !said.IsZero() {
		return said
	}
	for counter, i := range r.places[r.ID] {
		if at := r.runs[counter][i].At; at.After(said) {
			said = at
		}
	}
	return said
}

// lastJudgedFrom returns when the call was last claimed to be judged, or else when it was inserted: the gate did not
// look earlier.
func (r *recomputed) lastJudgedFrom() time.Time {
	for _, claim := range slices.Backward(r.Claims) {
		if !claim.Data.Begun {
			return claim.At
		}
	}
	return r.CreatedAt
}

// needsTime reports whether a judgement depends on its time.
func needsTime(j rules.Judgement) bool {
	return slices.ContainsFunc(j.Checks, func(c rules.Check) bool { return c.Counter != "" || c.Action == rules.Ask })
}

// resultOf computes the verdicts on the handler's result and effects again, if the receipt has any.
func (r *recomputed) resultOf(p program, j *rules.Judge, now time.Time, after []receipts.Verdict) {
	seen, found := r.rulesCall(r.call, p.registry)
	if !found || !j.OnResult(seen.Tool) || r.Receipt.ReplayOf != "" {
		return
	}
	if r.Receipt.Status != "succeeded" {
		if len(after) > 0 {
			r.unknown[resultLost] = true
		}
		return
	}
	r.report.Decisions++
	again := rules.OnReceipt(j.JudgeResult(seen, r.Receipt.Result, r.Receipt.effects()))
	r.differ(p, now, said("", after, nil), said("", again, nil))
}

func (r *recomputed) differ(p program, now time.Time, recorded, again string) {
	if recorded == again {
		return
	}
	r.report.Differences = append(r.report.Differences,
		Difference{CallID: r.ID, Tool: r.Tool, Version: p.rules, At: now, Recorded: recorded, Recomputed: again})
}

// said formats a decision: how rules ended the call, the verdict of each, and who approved.
func said(code receipts.Code, verdicts []receipts.Verdict, approvals []receipts.Approval) string {
	words := []string{cmp.Or(string(code), "let through")}
	for _, v := range verdicts {
		text := string(v.Action) + " " + v.Rule
		if v.Undecided {
			text += " undecided"
		}
		if v.Seen != nil {
			text += " " + sight(*v.Seen)
		}
		words = append(words, text)
	}
	for _, a := range approvals {
		words = append(words, fmt.Sprintf("approved for %s by %s at %s in %s", a.Rule, a.By, moment(a.At), a.ID))
	}
	return strings.Join(words, "; ")
}

// sight formats what a check saw in a canonical form.
func sight(s receipts.Evidence) string {
	for _, at := range []**time.Time{&s.FreeAt, &s.EndedAt} {
		if *at != nil {
			utc := (*at).UTC().Truncate(time.Microsecond)
			*at = &utc
		}
	}
	s.Total = plain(s.Total)
	text, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.999999Z07:00") }
