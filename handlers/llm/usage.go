package llm

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/provider/routes"
)

type available struct {
	Version string       `json:"version,omitempty"`
	Routes  []routeInfo  `json:"routes"`
	Targets []targetInfo `json:"targets"`
}

type routeInfo struct {
	Name       string          `json:"name"`
	Targets    []string        `json:"targets"`
	Order      routes.Order    `json:"order"`
	MaxCostUSD *provider.Money `json:"max_cost_usd,omitempty"`
}

type targetInfo struct {
	Name           string           `json:"name"`
	Provider       string           `json:"provider"`
	Model          string           `json:"model"`
	Context        int              `json:"context"`
	MaxOutput      int              `json:"max_output"`
	Capabilities   []string         `json:"capabilities"`
	Prices         []provider.Price `json:"usd_per_mtok,omitempty"`
	Key            bool             `json:"key"` // the key is set, or none is needed
	CooldownUntil  *time.Time       `json:"cooldown_until,omitempty"`
	CooldownReason string           `json:"cooldown_reason,omitempty"`
	Running        int              `json:"running"`
}

// Models lists the available models.
func (l *LLM) Models(ctx context.Context, tx handlers.Tx, _ *handlers.Call, _ struct{}) (available, error) {
	m, err := l.asked()
	if err != nil {
		return available{}, err
	}
	out := available{Version: m.Routes.Version, Routes: []routeInfo{}, Targets: []targetInfo{}}
	for _, r := range m.Routes.Routes() {
		info := routeInfo{Name: r.Name, Order: r.Order, MaxCostUSD: r.MaxCost}
		for _, target := range r.Targets {
			info.Targets = append(info.Targets, target.Name)
		}
		out.Routes = append(out.Routes, info)
	}
	var names []string
	for _, target := range m.Routes.Targets() {
		names = append(names, target.Name)
	}
	states, err := ledger.Targets(ctx, tx, names...)
	if err != nil {
		return available{}, err
	}
	running, err := ledger.UnderWay(ctx, tx)
	if err != nil {
		return available{}, err
	}
	for i, target := range m.Routes.Targets() {
		info := targetInfo{Name: target.Name, Provider: target.Provider.Name, Model: target.Model, Context: target.Context,
			MaxOutput: target.MaxOutput, Capabilities: capabilities(target),
			Prices: target.Prices, Key: m.Providers[target.Provider.Name] != nil, Running: running[target.Name]}
		if s := states[i]; !s.CooldownUntil.IsZero() {
			info.CooldownUntil, info.CooldownReason = &s.CooldownUntil, s.Why
		}
		out.Targets = append(out.Targets, info)
	}
	return out, nil
}

func capabilities(target *routes.Target) []string {
	all := []string{}
	for name, has := range map[string]bool{"tools": target.Tools, "thinking": target.Thinking,
		"structured": target.Structured} {
		if has {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

type usageInput struct {
	Since     *time.Time `json:"since,omitempty"`
	By        []string   `json:"by,omitempty"`
	CreatedBy *string    `json:"created_by,omitempty"`
}

type usageOutput struct {
	Rows []usageRow `json:"rows"`
}

type usageRow struct {
	Day    string `json:"day,omitempty"`
	Route  string `json:"route,omitempty"`
	Target string `json:"target,omitempty"`
	ledger.Total
	provider.Usage
}

// Usage sums the tokens and costs of models. A signed-in caller sees its own calls.
func (l *LLM) Usage(ctx context.Context, tx handlers.Tx, call *handlers.Call, in usageInput) (usageOutput, error) {
	filter := ledger.Filter{CreatedBy: in.CreatedBy, From: time.Now().Add(-noUsageBefore)}
	if in.Since != nil {
		filter.From = *in.Since
	}
	if call.SignedIn {
		filter.CreatedBy = &call.CreatedBy
	}
	days, err := ledger.UsageByDay(ctx, tx, filter)
	if err != nil {
		return usageOutput{}, err
	}
	if in.By == nil {
		in.By = []string{"day", "target"}
	}
	out, at := usageOutput{Rows: []usageRow{}}, map[usageRow]int{}
	for _, d := range days {
		var key usageRow
		if slices.Contains(in.By, "day") {
			key.Day = d.Day
		}
		if slices.Contains(in.By, "route") {
			key.Route = d.Route
		}
		if slices.Contains(in.By, "target") {
			key.Target = d.Target
		}
		i, ok := at[key]
		if !ok {
			i, at[key] = len(out.Rows), len(out.Rows)
			out.Rows = append(out.Rows, key)
		}
		out.Rows[i].add(&d)
	}
	slices.SortStableFunc(out.Rows, func(a, b usageRow) int {
		return cmp.Or(strings.Compare(b.Day, a.Day), strings.Compare(a.Route, b.Route), strings.Compare(a.Target, b.Target))
	})
	return out, nil
}

func (r *usageRow) add(d *ledger.DayUsage) {
	r.Requests += d.Requests
	r.Unknown += d.Unknown
	if d.Cost != nil {
		if r.Cost == nil {
			r.Cost = new(provider.Money)
		}
		*r.Cost += *d.Cost
	}
	r.Input += d.Input
	r.Output += d.Output
	r.CacheRead += d.CacheRead
	r.CacheWrite += d.CacheWrite
	r.Reasoning += d.Reasoning
}
