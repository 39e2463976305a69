package worker_test

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers/handlertest"
	"github.com/gemworker/gem/receipts"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/worker"
)

// programs are two programs with one registry file. The entries that come with them differ.
func programs(file []byte) (one, two func(*worker.Options)) {
	own := registry.Own().JSON()
	newer := bytes.ReplaceAll(own, []byte(`"description":"Asks `), []byte(`"description":"Now asks `))
	of := func(own []byte) func(*worker.Options) {
		return func(o *worker.Options) {
			o.Registry, o.Concurrency = must(registry.Resolve(file, own)), 1
		}
	}
	return of(own), of(newer)
}

func TestProgramsWhoseIncludedEntriesDifferShareOneFile(t *testing.T) {
	t.Parallel()
	file := labRegistry("4", tool{name: "lab.send"})
	for name, c := range map[string]struct {
		file     []byte
		versions int // that the two have
	}{
		"with include":    {append([]byte(`{"include": ["wait"], `), file[1:]...), 2},
		"without include": {file, 1}, // every registry has wait.answer and wait.approval, which differ
	} {
		t.Run(name+", at once", func(t *testing.T) {
			t.Parallel()
			env, lab := startLab(t, nil)
			one, two := programs(c.file)
			env.StartWorker(one)
			env.StartWorker(two)
			var calls []string
			for range 2 { // each worker has room for one
				calls = append(calls, env.Insert(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x", Gate: "g"})}))
				lab.awaitBegin(t)
			}
			workers, versions := map[string]bool{}, map[string]bool{}
			for range calls {
				lab.tell(t, "g", Order{})
			}
			for _, id := range calls {
				r := env.Await(id)
				workers[r.WorkerID], versions[r.RegistryVersion] = true, true
			}
			if len(workers) != 2 || len(versions) != c.versions || c.versions == 1 && !versions["4"] {
				t.Errorf("%d workers with the registries %v", len(workers), slices.Sorted(maps.Keys(versions)))
			}
			answered(t, env)
		})
		t.Run(name+", one after the other", func(t *testing.T) {
			t.Parallel()
			env, _ := startLab(t, nil)
			one, two := programs(c.file)
			var versions []string
			for _, program := range []func(*worker.Options){one, two, one} {
				w := env.StartWorker(program)
				r := env.Run(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
				versions = append(versions, r.RegistryVersion)
				answered(t, env)
				w.Stop()
			}
			differ := versions[0] != versions[1]
			if versions[0] != versions[2] || differ != (c.versions == 2) || !strings.HasPrefix(versions[1], "4") {
				t.Errorf("the registries %v", versions)
			}
			var recorded int
			err := env.DB.QueryRow(t.Context(), "select count(*) from core_registry_versions").Scan(&recorded)
			if err != nil || recorded != c.versions {
				t.Errorf("%d registries are recorded: %v", recorded, err)
			}
		})
	}
}

// answered asks a question as a frontend does, and answers it.
func answered(t *testing.T, env *handlertest.Env) {
	t.Helper()
	id := env.Insert(handlertest.Call{Tool: "wait.answer", Input: `{"text": "Which color?"}`})
	env.Answer(env.Question(id).ID, "blue")
	if r := env.Await(id); r.Status != receipts.Succeeded {
		t.Errorf("the question: %+v", r)
	}
}

func TestTheRegistryInForceHasTheIncludedTools(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil)
	file := strings.Replace(string(labRegistry("4", tool{name: "lab.send"})), "{",
		`{"include": ["wait.event"], "overrides": {"wait.event": {"frontends": false}}, `, 1)
	r := must(registry.Parse([]byte(file)))
	env.StartWorker(func(o *worker.Options) { o.Registry = r })
	env.Run(handlertest.Call{Tool: "lab.send", Input: task(Task{Text: "x"})})
	var known, version string
	err := env.DB.QueryRow(t.Context(), `
		select (select string_agg(name || ' ' || frontends, ', ' order by name) from gem.tools),
			(select version from core_registry_versions
				where registry -> 'tools' @> '[{"name": "wait.event", "frontends": false}]')`).Scan(&known, &version)
	if err != nil || known != "lab.send true, wait.answer true, wait.approval true, wait.event false" ||
		version != r.Version {
		t.Errorf("%s, %s, %v", known, version, err)
	}
}

func TestAnUnknownToolOfGEMSaysHowToIncludeIt(t *testing.T) {
	t.Parallel()
	env, _ := startLab(t, nil, tool{name: "lab.send"})
	env.StartWorker()
	e := handlertest.ErrorOf(t, env.Run(handlertest.Call{Tool: "llm.chat"}))
	want := `The registry 1.0.0 has no tool "llm.chat": it comes with GEM, so add "llm.chat" to "include". `
	if e.Code != receipts.UnknownTool || !strings.HasPrefix(e.Message, want) {
		t.Errorf("%+v", e)
	}
}
