package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/provider/routes"
	"github.com/gemworker/gem/notify"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
	"go.uber.org/zap"
)

// registryPoll is how often gem dev checks its files.
const registryPoll = 300 * time.Millisecond

// These sentences explain what happens until a file is repaired.
const (
	startsOnceRepaired     = "gem dev starts as soon as %s is repaired."
	continuesUntilRepaired = "The worker continues with the previous version until %s is repaired."
)

// contracts are the files of a worker that gem dev watches. All except the registry may be nil.
type contracts struct {
	registry *registry.Registry
	from     string
	rules    *rules.Set
	notify   *notify.Set
	domains  *backends.Domains
	models   *routes.Routes
}

// hashes returns a hash of each contract, by the sentence that reports its change.
func (c contracts) hashes() map[string]string {
	all := map[string]string{"the registry has changed": c.registry.SHA256()}
	if c.rules != nil {
		all["the rules have changed"] = c.rules.SHA256()
	}
	if c.notify != nil {
		all["notify.json has changed"] = c.notify.SHA256()
	}
	if c.domains != nil {
		all["domains.json has changed"] = c.domains.SHA256()
	}
	if c.models != nil {
		all["the routes of models have changed"] = c.models.SHA256()
	}
	return all
}

// devFiles are the files of gem dev: the variable that may name another one, and the name without it.
var devFiles = []struct{ variable, name string }{
	{"TOOLS_REGISTRY", "tools.registry.json"},
	{"TOOLS_RULES", "rules.json"},
	{"GEM_NOTIFY", notify.File},
	{"GEM_DOMAINS", backends.File},
	{"LLM_ROUTES", routes.File},
}

// chosenFile returns the path that a variable holds, by default name. It returns an empty text if the variable holds
// JSON.
func chosenFile(variable, name string) string {
	chosen := strings.TrimSpace(os.Getenv(variable))
	if strings.HasPrefix(chosen, "{") {
		return ""
	}
	return cmp.Or(chosen, name)
}

// load reads all files. It returns the faults by variable, or the contracts if there are none.
func (p *Program) load() (now contracts, faults map[string]error) {
	faults = map[string]error{}
	var err error
	if now.registry, now.from, err = p.loadRegistry(os.Getenv("TOOLS_REGISTRY")); err != nil {
		faults["TOOLS_REGISTRY"] = err
	}
	if now.domains, _, err = p.loadDomains(os.Getenv("GEM_DOMAINS")); err != nil {
		faults["GEM_DOMAINS"] = err
	}
	if now.models, err = p.chosenModels(); err != nil {
		faults["LLM_ROUTES"] = err
	}
	if now.rules, _, err = p.loadRules(os.Getenv("TOOLS_RULES")); err != nil {
		faults["TOOLS_RULES"] = err
	}
	if now.notify, _, err = notify.Find(os.Getenv("GEM_NOTIFY")); err != nil {
		faults["GEM_NOTIFY"] = err
	}
	if faults["TOOLS_REGISTRY"] != nil || faults["GEM_DOMAINS"] != nil {
		return now, faults
	}
	bound, _, err := p.fit(now.registry, now.domains)
	if err != nil {
		faults["TOOLS_REGISTRY"] = err
	} else if now.rules != nil && faults["TOOLS_RULES"] == nil {
		if _, err := rulesFit(now.rules, now.registry, bound); err != nil {
			faults["TOOLS_RULES"] = err
		}
	}
	if now.notify != nil && faults["GEM_NOTIFY"] == nil {
		if err := now.notify.Check(now.registry); err != nil {
			faults["GEM_NOTIFY"] = err
		}
	}
	return now, faults
}

// chosenModels reads the routes that a worker would load here. It returns nil if there are none.
func (p *Program) chosenModels() (*routes.Routes, error) {
	if !p.asksModels() {
		return nil, nil
	}
	r, _, err := routes.Find(os.Getenv("LLM_ROUTES"))
	return r, err
}

// watchFiles sends the contracts whenever they change, and reports faulty files, until ctx ends.
func (p *Program) watchFiles(
	ctx context.Context, before contracts, changes chan<- contracts, log *zap.Logger, progress io.Writer,
) {
	var files filesRead
	faulty := map[string]string{}
	for files.change(ctx) {
		now, faults := p.load()
		files.reportFaults(faulty, faults, continuesUntilRepaired, progress)
		if len(faults) > 0 {
			continue
		}
		changed := changedIn(before.hashes(), now.hashes())
		if len(changed) == 0 {
			continue
		}
		for _, sentence := range changed {
			log.Info(sentence)
		}
		select {
		case <-ctx.Done():
			return
		case changes <- now:
			before = now
		}
	}
}

// awaitFiles returns when the files have no fault. Until then it reports faults and repairs. It returns an error for a
// fault that no change of a file in the folder can repair, and the error of ctx if that ends first.
func (p *Program) awaitFiles(ctx context.Context, progress io.Writer) error {
	var files filesRead
	faulty := map[string]string{}
	for {
		_, faults := p.load()
		if err := faultOfEnvironment(faults); err != nil {
			return usageError{err}
		}
		files.reportFaults(faulty, faults, startsOnceRepaired, progress)
		if len(faults) == 0 {
			return nil
		}
		if !files.change(ctx) {
			return ctx.Err()
		}
	}
}

// faultOfEnvironment returns the first fault that no file of the folder can fix: a variable that holds JSON or names
// a missing file, or the program's own contracts.
func faultOfEnvironment(faults map[string]error) error {
	inFile := false
	for _, file := range devFiles {
		name := chosenFile(file.variable, file.name)
		_, missing := os.Stat(name)
		inFile = inFile || missing == nil
		if set := strings.TrimSpace(os.Getenv(file.variable)) != ""; set && missing != nil && faults[file.variable] != nil {
			return faults[file.variable]
		}
	}
	if inFile {
		return nil
	}
	return errors.Join(slices.Collect(maps.Values(faults))...)
}

// filesRead records, by name, the hashes of the contents that were loaded.
type filesRead struct {
	read, last map[string]string // at the last load, and at the last poll
	changed    []string          // the files that differed at the last return of change
}

// change waits until the contents differ from those at its last return and then stay the same for a moment, since an
// editor may still be writing. It returns false if ctx ends first.
func (f *filesRead) change(ctx context.Context) bool {
	for pause(ctx) {
		contents := hashesOfFiles()
		settled := maps.Equal(contents, f.last)
		if f.last = contents; !settled || f.read != nil && maps.Equal(contents, f.read) {
			continue
		}
		f.changed = changedIn(f.read, contents)
		f.read = contents
		return true
	}
	return false
}

// changedOther names the files that changed, if name did not.
func (f *filesRead) changedOther(name string) string {
	if slices.Contains(f.changed, name) {
		return ""
	}
	return strings.Join(f.changed, " and ")
}

// reportFaults prints each new fault and each repair, and updates faulty. until is the sentence about the time until
// a repair.
func (f *filesRead) reportFaults(faulty map[string]string, faults map[string]error, until string, progress io.Writer) {
	for _, file := range devFiles {
		name, text := cmp.Or(chosenFile(file.variable, file.name), file.variable), ""
		if err := faults[file.variable]; err != nil {
			text = err.Error()
		}
		other := f.changedOther(name)
		switch {
		case text == faulty[file.variable]:
		case text == "" && other != "":
			fmt.Fprintf(progress, "repaired: %s, by the change of %s\n", name, other)
		case text == "":
			fmt.Fprintf(progress, "repaired: %s\n", name)
		default:
			fmt.Fprintf(progress, "%s\n"+until+"\n", text, name)
			if other != "" {
				fmt.Fprintf(progress, "%s did not change, but %s did.\n", name, other)
			}
		}
		faulty[file.variable] = text
	}
}

// hashesOfFiles returns a hash of the contents of each file, by name, or why it cannot be read.
func hashesOfFiles() map[string]string {
	all := map[string]string{}
	for _, f := range devFiles {
		name := chosenFile(f.variable, f.name)
		if name == "" {
			continue
		}
		text, err := plainfile.Read(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			all[name] = "missing"
		case err != nil:
			all[name] = err.Error()
		default:
			all[name] = fmt.Sprintf("%x", sha256.Sum256(text))
		}
	}
	return all
}

// changedIn names the entries that were added, removed or changed in after.
func changedIn(before, after map[string]string) []string {
	names := map[string]bool{}
	for _, all := range []map[string]string{before, after} {
		for name := range all {
			names[name] = names[name] || before[name] != after[name]
		}
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(names)), func(name string) bool { return !names[name] })
}

// openModels reopens the domain llm, which reads its routes.
func (s *setup) openModels() error {
	for _, d := range binding.Domains(s.program.domainsOf(s.registry)...) {
		if d.Name() == "llm" {
			return binding.Open(s.environmentOfDomains(), d)
		}
	}
	return nil
}

// forgetEarlier lets the private database accept changed contracts under versions that it has recorded. It also
// removes stopped workers, so that no call waits for one that knew an earlier tool.
func (s *setup) forgetEarlier(ctx context.Context, now contracts) error {
	forget := func(table, version, sha256 string) error {
		_, err := s.pools[0].Exec(ctx, "delete from "+table+" where version = $1 and sha256 <> $2", version, sha256)
		return err
	}
	err := forget("public.core_registry_versions", now.registry.Version, now.registry.SHA256())
	if now.rules != nil {
		err = errors.Join(err, forget("public.core_rules_versions", now.rules.Version, now.rules.SHA256()))
	}
	if now.notify != nil {
		err = errors.Join(err, forget("gem.notify_versions", now.notify.Version, now.notify.SHA256()))
	}
	if now.domains != nil {
		err = errors.Join(err, forget("gem.domains_versions", now.domains.Version, now.domains.SHA256()))
	}
	if now.models != nil {
		err = errors.Join(err, forget("public.core_llm_versions", now.models.Version, now.models.SHA256()))
	}
	if err == nil {
		_, err = s.pools[0].Exec(ctx, `delete from public.core_workers w where stopped_at is not null
			and not exists (select from public.core_tool_calls c where c.status = 'running' and c.claimed_by = w.worker_id)`)
	}
	return err
}

// registryFile returns the setting of TOOLS_REGISTRY for a command in another folder, if the registry is from a file.
func (s *setup) registryFile() string {
	path, err := filepath.Abs(s.from)
	if _, none := os.Stat(path); err != nil || none != nil {
		return ""
	}
	return "TOOLS_REGISTRY='" + path + "' "
}
