package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/gemworker/gem/backends/sqlfunc"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/registry"
	"go.uber.org/zap"
)

// addFunctions adds the tools in SQL, once there is a database, and logs mismatches between tools and handlers before
// the worker starts.
func (s *setup) addFunctions(bound *binding.Handlers) {
	if !s.isolated {
		bound.Add(sqlfunc.New(s.pools[0], s.log)) // calls look here while they wait for their own connection
	}
	without, err := fit(s.registry, bound)
	if err != nil { // only a function, which may be new, can be at fault here: prepare has rejected all other faults
		s.log.Warn("a tool in SQL does not fit its entry in the registry", zap.Error(err))
	}
	if without != "" {
		s.log.Warn(without)
	}
}

// lookForFunctions adds the tools in SQL that the database of DATABASE_URL has. Without a database, note reports that
// nobody looked. The caller must call done.
func lookForFunctions(ctx context.Context, bound *binding.Handlers) (place *sqlfunc.Functions, note string,
	done func()) {
	done = func() {}
	if os.Getenv("DATABASE_URL") == "" && runningDev() == "" {
		return nil, "DATABASE_URL is not set, and no gem dev runs in this folder: functions in SQL were not looked for", done
	}
	db, err := connect(ctx)
	if err == nil {
		place, done = sqlfunc.New(db, nil), db.Close
		err = place.Look(ctx)
	}
	if err != nil {
		return nil, fmt.Sprintf("functions in SQL could not be looked for: %v", refusal(err)), done
	}
	bound.Add(place)
	return place, "", done
}

// hidden names the function in SQL that is ignored because the tool has another backend. It returns an empty text if
// there is none.
func hidden(place *sqlfunc.Functions, tool *registry.Tool, h *binding.Handler) string {
	if place == nil || h.File == sqlfunc.File {
		return ""
	}
	if f, ok := place.For(tool.Name); ok {
		return fmt.Sprintf("; it hides %s in SQL", f.Func)
	}
	return ""
}
