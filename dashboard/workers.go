package dashboard

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/watch"
)

// workersData is what the page of the workers shows.
type workersData struct {
	Workers []watch.Worker
	Alive   int
	// Registries and Rules are the versions with which living workers run.
	Registries, Rules []string
}

func (s *site) workers(ctx context.Context, _ *request) (*view, error) {
	var data workersData
	err := watch.Read(ctx, s.Read, func(ctx context.Context, db watch.DB) (err error) {
		data.Workers, err = watch.Workers(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, w := range data.Workers {
		if w.State != "alive" {
			continue
		}
		data.Alive++
		rules := w.RulesVersion
		if rules == "" {
			rules = "none"
		}
		data.Registries, data.Rules = append(data.Registries, w.RegistryVersion), append(data.Rules, rules)
	}
	data.Registries, data.Rules = distinct(data.Registries), distinct(data.Rules)
	return &view{Title: fmt.Sprintf("Workers: %d alive", data.Alive), Template: "workers", Data: data, Watch: "workers", JSON: data.Workers}, nil
}

func distinct(values []string) []string {
	slices.Sort(values)
	return slices.Compact(values)
}

// Many says in words that living workers run with different versions; it is empty if they do not.
func (d workersData) Many(versions []string) string {
	if len(versions) < 2 {
		return ""
	}
	return strings.Join(versions, ", ")
}
