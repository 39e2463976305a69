// Package llm is the domain llm: tools that ask models of several providers. The operator's routes file lists the
// models. Package router makes the requests, and package ledger records their costs.
package llm

import (
	"context"
	"fmt"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/internal/provider"
	"github.com/gemworker/gem/internal/provider/ledger"
	"github.com/gemworker/gem/internal/provider/progress"
	"github.com/gemworker/gem/internal/provider/router"
	"github.com/gemworker/gem/internal/provider/routes"
	"go.uber.org/zap"
)

// LLM has the tools of the domain.
type LLM struct {
	config config
	models *router.Models // nil without a routes file
}

// Domain returns the domain llm. Without a routes file, its tools that ask models end as not_configured. The domains
// agent and extract also use its models after it was opened.
func Domain() handlers.Domain {
	l := &LLM{}
	l.config.models = l.asked
	return handlers.Domain{Tools: l, Config: &l.config, Open: l.open, Check: l.check, Remote: []string{"*"}}
}

// open reads the routes file, and makes a client for each provider that has its key.
func (l *LLM) open(env handlers.Env) error {
	if env.Isolated && l.config.Routes == "" {
		return nil // without looking for a file
	}
	r, from, err := routes.Find(l.config.Routes)
	if err != nil {
		return err
	}
	if r == nil {
		l.models = nil
		env.Log.Info("no routes of models")
		return nil
	}
	proxy, err := l.config.proxy()
	if err != nil {
		return err
	}
	measured, err := router.NewTelemetry(env.Meter)
	if err != nil {
		return err
	}
	l.models = &router.Models{Routes: r, Providers: map[string]provider.Provider{}, DB: env.Pool, Telemetry: measured,
		Log: env.Log}
	client := provider.NewHTTP(proxy)
	missing := []string{}
	for _, p := range r.Providers() {
		key := ""
		if p.KeyEnv != "" {
			if key = l.config.key(p.KeyEnv).Reveal(); key == "" {
				missing = append(missing, p.KeyEnv)
				continue
			}
			l.models.Keys = append(l.models.Keys, key)
		}
		l.models.Providers[p.Name] = dial(p, provider.Endpoint{BaseURL: p.BaseURL, Key: key, HTTP: client})
	}
	l.models.Progress = progress.NewWriter(env.Pool, time.Duration(l.config.IntervalMS)*time.Millisecond, env.Log,
		l.models.Keys...)
	env.Log.Info("routes of models loaded", zap.String("from", from), zap.String("version", r.Version),
		zap.Int("routes", len(r.Routes())),
		zap.Strings("missing_keys", missing), zap.String("sha256", r.SHA256()))
	return nil
}

// check records the routes, and refuses others under a recorded version.
func (l *LLM) check(ctx context.Context, db handlers.DB) error {
	if l.models == nil {
		return nil
	}
	r := l.models.Routes
	others, err := ledger.RecordVersion(ctx, db, r.Version, r.SHA256(), r.JSON())
	if others == nil || err != nil {
		return err
	}
	recorded, err := routes.Parse(others)
	if err != nil {
		return fmt.Errorf("other routes were recorded as version %s, and this program cannot read them: raise \"version\" "+
			"in the routes file", r.Version)
	}
	return routes.CheckUpgrade(recorded, r)
}

// asked returns the models, or an error with the reason if there are none.
func (l *LLM) asked() (*router.Models, error) {
	if l.models == nil {
		return nil, &handlers.NotConfigured{
			Reason:      "There is no routes file, which says what models may be asked.",
			RequiredEnv: []string{"LLM_ROUTES"},
			NextSteps: []string{"Write llm.routes.json, and check it with `gem llm check`.",
				"Put it into the working directory: gem dev reads it at once, and gem worker when it starts. " +
					"Or set LLM_ROUTES to its path and restart either.", "Make the call again."},
		}
	}
	return l.models, nil
}

// ask is the common part of chat and structured.
type ask struct {
	Messages        []provider.Message `json:"messages"`
	System          string             `json:"system,omitempty"`
	Route           string             `json:"route,omitempty"`
	MaxOutputTokens int                `json:"max_output_tokens,omitempty"`
	Temperature     *float64           `json:"temperature,omitempty"`
	TopP            *float64           `json:"top_p,omitempty"`
	Effort          provider.Effort    `json:"effort,omitempty"`
	MaxCostUSD      *provider.Money    `json:"max_cost_usd,omitempty"`
	Cache           bool               `json:"cache,omitempty"`
	Metadata        map[string]string  `json:"metadata,omitempty"`
}

// check refuses a conversation without text for the model, because messages without content are not sent to providers.
func (a *ask) check() error {
	for _, m := range a.Messages {
		for _, p := range m.Content {
			if p.Type != provider.Text || p.Text != "" {
				return nil
			}
		}
	}
	return invalid("/messages", "all messages are empty: write into content what the model is to read")
}

func (a *ask) question() router.Question {
	q := router.Question{Route: a.Route, System: a.System, Messages: a.Messages, MaxOutputTokens: a.MaxOutputTokens,
		Temperature: a.Temperature, TopP: a.TopP,
		Effort: a.Effort, MaxCost: a.MaxCostUSD, Cache: a.Cache}
	if q.Route == "" {
		q.Route = "default"
	}
	return q
}

// textOf joins the texts of an answer.
func textOf(a *router.Answer) string { return (&provider.Answer{Parts: a.Parts}).Text() }

// noUsageBefore is the default period of llm.usage.
const noUsageBefore = 30 * 24 * time.Hour
