package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/gemworker/gem/elsewhere/functions"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/registry"
	"go.uber.org/zap"
)

// addFunctions adds the tools in SQL, once there is a database, and says what a worker should know of its tools before it starts.
func (s *setup) addFunctions(bound *handlers.Handlers) {
	if !s.isolated {
		bound.Add(functions.New(s.pools[0], s.log)) // calls look while they wait for a connection of their own
	}
	without, err := fit(s.registry, bound)
	if err != nil { // of a function only, which anyone may have made meanwhile: prepare has refused all else
		s.log.Warn("a tool in SQL does not fit its entry in the registry", zap.Error(err))
	}
	if without != "" {
		s.log.Warn(without)
	}
}

// lookForFunctions adds the tools in SQL that the database of DATABASE_URL has. Without a database, note says that nobody looked. The place must be
// closed.
func lookForFunctions(ctx context.Context, bound *handlers.Handlers) (place *functions.Functions, note string, done func()) {
	done = func() {}
	if os.Getenv("DATABASE_URL") == "" && runningDev() == "" {
		return nil, "DATABASE_URL is not set, and no gem dev runs in this folder: functions in SQL were not looked for", done
	}
	db, err := connect(ctx)
	if err == nil {
		place, done = functions.New(db, nil), db.Close
		err = place.Look(ctx)
	}
	if err != nil {
		return nil, fmt.Sprintf("functions in SQL could not be looked for: %v", refusal(err)), done
	}
	bound.Add(place)
	return place, "", done
}

// hidden names the function in SQL that is ignored because the tool lives elsewhere; it is empty if there is none.
func hidden(place *functions.Functions, tool *registry.Tool, h *handlers.Handler) string {
	if place == nil || h.File == functions.File {
		return ""
	}
	if f, ok := place.For(tool.Name); ok {
		return fmt.Sprintf("; it hides %s in SQL", f.Func)
	}
	return ""
}
