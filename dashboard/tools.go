package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gemworker/gem/client/view"
)

// toolsShown is the number of tools on a page.
const toolsShown = 100

type toolsPage struct {
	Tools []view.Tool
	Find  string // a part of the listed names; empty means all
	All   int    // their number
	Next  string // the last name of this page, if there are more
}

// tools lists the tools of the registry in force, and tools with recent calls. ?name= shows one tool, like
// /tools/{name}: a name may end with anything, such as .json.
func (s *site) tools(ctx context.Context, r *request) (*content, error) {
	q := r.URL.Query()
	if q.Has("name") {
		return s.toolNamed(ctx, r, q.Get("name"))
	}
	var all []view.Tool
	err := s.readList(ctx, r, r.db(), func(ctx context.Context, db view.DB) (err error) {
		all, err = view.Tools(ctx, db)
		return err
	})
	if err != nil {
		return nil, err
	}
	p := toolsPage{Find: q.Get("find"), All: len(all)}
	all = slices.DeleteFunc(all, func(t view.Tool) bool { return !strings.Contains(t.Name, p.Find) })
	p.Tools = all[1+slices.IndexFunc(all, func(t view.Tool) bool { return t.Name == q.Get("after") }):]
	if len(p.Tools) > toolsShown {
		p.Tools = p.Tools[:toolsShown]
		p.Next = p.Tools[toolsShown-1].Name
	}
	return &content{Title: fmt.Sprintf("Tools: %d", len(all)), Template: "tools", Data: p, JSON: all}, nil
}

func (s *site) tool(ctx context.Context, r *request) (*content, error) {
	return s.toolNamed(ctx, r, r.PathValue("name"))
}

// toolPage is the data of a tool's page.
type toolPage struct {
	*view.ToolPage
	Entries []toolEntry
	Latest  *toolEntry // the entry in force; nil for a tool that no registry has
	Differ  []string   // the fields in which the entries of living workers differ
	Place   string     // where its handler runs, as far as the database knows; empty for a viewer
	Plots   plots      // of the last hour; without points if none of its calls ended
}

// toolEntry is an entry for the page.
type toolEntry struct {
	view.ToolEntry
	Description   string
	Input, Output json.RawMessage
	Fields        []toolField
	Changed       []string // the fields that differ from the next older registry
	First         bool     // no older registry of those shown has the tool
}

// toolField is a field of an entry other than its texts and schemas.
type toolField struct {
	Name, Value string
	Differs     bool // living workers have others
}

func (s *site) toolNamed(ctx context.Context, r *request, name string) (*content, error) {
	p := toolPage{}
	err := s.readByRights(ctx, r, func(ctx context.Context, db view.DB) (err error) {
		if p.ToolPage, err = view.ReadTool(ctx, db, name); err != nil || p.ToolPage == nil {
			return err
		}
		if p.Day.Ended() > 0 {
			minutes, all, err := view.Minutes(ctx, db, time.Time{}, time.Time{}, name)
			if err != nil {
				return err
			}
			p.Plots = plotsOf("minutes", minutes, all)
		}
		if !r.operates() {
			return nil
		}
		p.Place, err = placeOf(ctx, db, name)
		return err
	})
	if err != nil {
		return nil, err
	}
	if p.ToolPage == nil {
		return nil, notFound("This tool does not exist: no registry in force has it, and none of its calls ended in the " +
			"last 31 days.")
	}
	p.compare()
	state := "not in the registry in force"
	switch {
	case p.Registered && p.Workers > 0:
		state = "served"
	case p.Registered:
		state = "no living worker has it"
	}
	return &content{Title: fmt.Sprintf("Tool %s: %s", p.Name, state), Template: "tool", Data: p, JSON: p.ToolPage}, nil
}

// placeOf returns where the handler of a tool runs. The database knows the functions in the schema tools, and the
// last recorded domains.json. Only operators may read that file.
func placeOf(ctx context.Context, db view.DB, name string) (place string, err error) {
	err = db.QueryRow(ctx, `select case
			when exists (select from pg_catalog.pg_proc f join pg_catalog.pg_namespace n on n.oid = f.pronamespace
				where n.nspname = 'tools' and f.proname = replace($1, '.', '_')) then 'a function of the schema tools in Postgres'
			when d.domain ? 'http' then 'a webhook, by domains.json ' || v.version
			when d.domain ? 'mcp' then 'an MCP server, by domains.json ' || v.version
			else 'the workers'' program' end
		from (select) one
		left join lateral (select version, domains from gem.domains_versions order by recorded_at desc limit 1) v on true
		left join lateral (select v.domains -> split_part($1, '.', 1)) d (domain) on true`, name).Scan(&place)
	return place, err
}

// compare finds the differences between registries: a caller cannot rely on a field that differs between living
// workers.
func (p *toolPage) compare() {
	fields := make([]map[string]json.RawMessage, len(p.ToolPage.Entries))
	living := map[string]map[string]bool{} // field → its values
	for i, e := range p.ToolPage.Entries {
		_ = json.Unmarshal(e.Entry, &fields[i]) // which workers recorded, as an object
		if e.Workers == 0 {
			continue
		}
		for name := range fields[i] {
			living[name] = map[string]bool{}
		}
	}
	for i, e := range p.ToolPage.Entries {
		for name, values := range living {
			if e.Workers > 0 {
				values[string(fields[i][name])] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(living)) {
		if len(living[name]) > 1 {
			p.Differ = append(p.Differ, name)
		}
	}
	for i, e := range p.ToolPage.Entries {
		shown := toolEntry{ToolEntry: e, Input: fields[i]["input_schema"], Output: fields[i]["output_schema"],
			First: i+1 == len(fields)}
		_ = json.Unmarshal(fields[i]["description"], &shown.Description)
		for _, name := range slices.Sorted(maps.Keys(fields[i])) {
			if !slices.Contains([]string{"name", "description", "input_schema", "output_schema"}, name) {
				shown.Fields = append(shown.Fields, toolField{name, plain(fields[i][name]), slices.Contains(p.Differ, name)})
			}
		}
		if !shown.First {
			shown.Changed = changed(fields[i], fields[i+1])
		}
		p.Entries = append(p.Entries, shown)
	}
	for i := range p.Entries {
		if e := &p.Entries[i]; p.Latest == nil || p.Latest.Workers == 0 && e.Workers > 0 {
			p.Latest = e
		}
	}
}

// changed returns the names of the fields that differ between two objects, in order.
func changed(one, other map[string]json.RawMessage) (names []string) {
	both := maps.Clone(other)
	maps.Copy(both, one)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		if !bytes.Equal(one[name], other[name]) {
			names = append(names, name)
		}
	}
	return names
}

// plain formats a small value for people: texts and lists of texts without quotes, and anything else as JSON.
func plain(raw json.RawMessage) string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	var many []string
	if json.Unmarshal(raw, &many) == nil {
		return strings.Join(many, ", ")
	}
	return string(raw)
}
