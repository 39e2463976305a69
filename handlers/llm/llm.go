// Package llm is the domain llm: tools that ask models of several providers. What may be asked stands in the routes file of the operator;
// package models below asks, and package ledger keeps what it costs.
package llm

import (
	"context"
	"fmt"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/llm/ledger"
	"github.com/gemworker/gem/handlers/llm/models"
	"github.com/gemworker/gem/handlers/llm/progress"
	"github.com/gemworker/gem/internal/llm"
	"github.com/gemworker/gem/internal/llm/routes"
	"go.uber.org/zap"
)

// LLM has the tools of the domain.
type LLM struct {
	config config
	models *models.Models // nil without a routes file
}

// Domain returns the domain llm. Without a routes file, its tools that ask answer not_configured.
func Domain() handlers.Domain {
	d, _ := DomainAndModels()
	return d
}

// DomainAndModels returns the domain llm, and its models for other domains of the program, which may ask them once the domain is open.
func DomainAndModels() (handlers.Domain, models.Source) {
	l := &LLM{}
	return handlers.Domain{Tools: l, Config: &l.config, Open: l.open, Check: l.check, Remote: []string{"*"}}, l.asked
}

// open reads the routes file, and makes a client for each provider that has its key.
func (l *LLM) open(env handlers.Env) error {
	if env.Isolated && l.config.Routes == "" {
		return nil // and no file is looked for
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
	measured, err := models.NewTelemetry(env.Meter)
	if err != nil {
		return err
	}
	l.models = &models.Models{Routes: r, Providers: map[string]llm.Provider{}, DB: env.Pool, Telemetry: measured, Log: env.Log}
	client := llm.NewHTTP(proxy)
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
		l.models.Providers[p.Name] = dial(p, llm.Endpoint{BaseURL: p.BaseURL, Key: key, HTTP: client})
	}
	l.models.Progress = progress.NewWriter(env.Pool, time.Duration(l.config.IntervalMS)*time.Millisecond, env.Log, l.models.Keys...)
	env.Log.Info("routes of models loaded", zap.String("from", from), zap.String("version", r.Version), zap.Int("routes", len(r.Routes())),
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
		return fmt.Errorf("other routes were recorded as version %s, and this program cannot read them: raise \"version\" in the routes file", r.Version)
	}
	return routes.CheckUpgrade(recorded, r)
}

// asked returns the models, or why there are none.
func (l *LLM) asked() (*models.Models, error) {
	if l.models == nil {
		return nil, &handlers.NotConfigured{
			Reason:      "There is no routes file, which says what models may be asked.",
			RequiredEnv: []string{"LLM_ROUTES"},
			NextSteps: []string{"Write llm.routes.json, and check it with `gem llm check`.",
				"Put it into the worker's working directory, or set LLM_ROUTES to its path, restart the worker and make the call again."},
		}
	}
	return l.models, nil
}

// ask is what chat and structured have in common.
type ask struct {
	Messages        []llm.Message     `json:"messages"`
	System          string            `json:"system,omitempty"`
	Route           string            `json:"route,omitempty"`
	MaxOutputTokens int               `json:"max_output_tokens,omitempty"`
	Temperature     *float64          `json:"temperature,omitempty"`
	TopP            *float64          `json:"top_p,omitempty"`
	Effort          llm.Effort        `json:"effort,omitempty"`
	MaxCostUSD      *llm.Money        `json:"max_cost_usd,omitempty"`
	Metadata        map[string]string `json:"metadata,omitempty"`
}

// check refuses a conversation in which a model would have nothing to read: providers are not sent messages without content.
func (a *ask) check() error {
	for _, m := range a.Messages {
		for _, p := range m.Content {
			if p.Type != llm.Text || p.Text != "" {
				return nil
			}
		}
	}
	return invalid("/messages", "all messages are empty: write into content what the model is to read")
}

func (a *ask) question() models.Question {
	q := models.Question{Route: a.Route, System: a.System, Messages: a.Messages, MaxOutputTokens: a.MaxOutputTokens, Temperature: a.Temperature, TopP: a.TopP,
		Effort: a.Effort, MaxCost: a.MaxCostUSD}
	if q.Route == "" {
		q.Route = "default"
	}
	return q
}

// textOf joins the texts of an answer.
func textOf(a *models.Answer) string { return (&llm.Answer{Parts: a.Parts}).Text() }

// noUsageBefore is how far back llm.usage looks unless it is told.
const noUsageBefore = 30 * 24 * time.Hour
