package llm

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/ledger"
	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/internal/llm/routes"
)

type available struct {
	Version string      `json:"version,omitempty"`
	Routes  []routeInfo `json:"routes"`
	Arms    []armInfo   `json:"arms"`
}

type routeInfo struct {
	Name       string       `json:"name"`
	Arms       []string     `json:"arms"`
	Order      routes.Order `json:"order"`
	MaxCostUSD *llm.Money   `json:"max_cost_usd,omitempty"`
}

type armInfo struct {
	Name         string      `json:"name"`
	Provider     string      `json:"provider"`
	Model        string      `json:"model"`
	Context      int         `json:"context"`
	MaxOutput    int         `json:"max_output"`
	Capabilities []string    `json:"capabilities"`
	Prices       []llm.Price `json:"usd_per_mtok,omitempty"`
	Key          bool        `json:"key"` // it is set, or none is needed
	RestsUntil   *time.Time  `json:"rests_until,omitempty"`
	RestsBecause string      `json:"rests_because,omitempty"`
	Running      int         `json:"running"`
}

// Models lists what may be asked.
func (l *LLM) Models(ctx context.Context, tx handlers.Tx, _ *handlers.Call, _ struct{}) (available, error) {
	m, err := l.asked()
	if err != nil {
		return available{}, err
	}
	out := available{Version: m.Routes.Version, Routes: []routeInfo{}, Arms: []armInfo{}}
	for _, r := range m.Routes.Routes() {
		info := routeInfo{Name: r.Name, Order: r.Order, MaxCostUSD: r.MaxCost}
		for _, arm := range r.Arms {
			info.Arms = append(info.Arms, arm.Name)
		}
		out.Routes = append(out.Routes, info)
	}
	var names []string
	for _, arm := range m.Routes.Arms() {
		names = append(names, arm.Name)
	}
	states, err := ledger.Arms(ctx, tx, names...)
	if err != nil {
		return available{}, err
	}
	running, err := ledger.UnderWay(ctx, tx)
	if err != nil {
		return available{}, err
	}
	for i, arm := range m.Routes.Arms() {
		info := armInfo{Name: arm.Name, Provider: arm.Provider.Name, Model: arm.Model, Context: arm.Context, MaxOutput: arm.MaxOutput, Capabilities: capabilities(arm),
			Prices: arm.Prices, Key: m.Providers[arm.Provider.Name] != nil, Running: running[arm.Name]}
		if s := states[i]; !s.RestsUntil.IsZero() {
			info.RestsUntil, info.RestsBecause = &s.RestsUntil, s.Why
		}
		out.Arms = append(out.Arms, info)
	}
	return out, nil
}

func capabilities(arm *routes.Arm) []string {
	all := []string{}
	for name, has := range map[string]bool{"tools": arm.Tools, "thinking": arm.Thinking, "structured": arm.Structured} {
		if has {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

type usageAsked struct {
	Since     *time.Time `json:"since,omitempty"`
	By        []string   `json:"by,omitempty"`
	CreatedBy *string    `json:"created_by,omitempty"`
}

type used struct {
	Rows []usageRow `json:"rows"`
}

type usageRow struct {
	Day   string `json:"day,omitempty"`
	Route string `json:"route,omitempty"`
	Arm   string `json:"arm,omitempty"`
	ledger.Total
	llm.Usage
}

// Usage sums up what models took and cost. A signed-in caller sees its own calls.
func (l *LLM) Usage(ctx context.Context, tx handlers.Tx, call *handlers.Call, in usageAsked) (used, error) {
	filter := ledger.Filter{CreatedBy: in.CreatedBy, From: time.Now().Add(-noUsageBefore)}
	if in.Since != nil {
		filter.From = *in.Since
	}
	if call.SignedIn {
		filter.CreatedBy = &call.CreatedBy
	}
	days, err := ledger.UsageByDay(ctx, tx, filter)
	if err != nil {
		return used{}, err
	}
	if in.By == nil {
		in.By = []string{"day", "arm"}
	}
	out, at := used{Rows: []usageRow{}}, map[usageRow]int{}
	for _, d := range days {
		var key usageRow
		if slices.Contains(in.By, "day") {
			key.Day = d.Day
		}
		if slices.Contains(in.By, "route") {
			key.Route = d.Route
		}
		if slices.Contains(in.By, "arm") {
			key.Arm = d.Arm
		}
		i, ok := at[key]
		if !ok {
			i, at[key] = len(out.Rows), len(out.Rows)
			out.Rows = append(out.Rows, key)
		}
		out.Rows[i].add(&d)
	}
	slices.SortStableFunc(out.Rows, func(a, b usageRow) int {
		return cmp.Or(strings.Compare(b.Day, a.Day), strings.Compare(a.Route, b.Route), strings.Compare(a.Arm, b.Arm))
	})
	return out, nil
}

func (r *usageRow) add(d *ledger.DayUsage) {
	r.Requests += d.Requests
	r.Unknown += d.Unknown
	if d.Cost != nil {
		if r.Cost == nil {
			r.Cost = new(llm.Money)
		}
		*r.Cost += *d.Cost
	}
	r.Input += d.Input
	r.Output += d.Output
	r.CacheRead += d.CacheRead
	r.CacheWrite += d.CacheWrite
	r.Reasoning += d.Reasoning
}
