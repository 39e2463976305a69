package dashboard

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gemworker/gem/client/view"
)

// workersData is the data of the workers' page.
type workersData struct {
	Workers []view.Worker
	Alive   int
	// Registries and Rules are the versions with which living workers run.
	Registries, Rules []string
}

func (s *site) workers(ctx context.Context, r *request) (*content, error) {
	var data workersData
	err := s.readList(ctx, r, s.Read, func(ctx context.Context, db view.DB) (err error) {
		data.Workers, err = view.Workers(ctx, db)
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
	return &content{Title: fmt.Sprintf("Workers: %d alive", data.Alive), Template: "workers", Data: data, Watch: "workers",
		JSON: data.Workers}, nil
}

func distinct(values []string) []string {
	slices.Sort(values)
	return slices.Compact(values)
}

// Many reports in words that living workers run with different versions. It returns "" if they do not.
func (d workersData) Many(versions []string) string {
	if len(versions) < 2 {
		return ""
	}
	return strings.Join(versions, ", ")
}
