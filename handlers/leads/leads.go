// Package leads is the domain leads: people who request work, from the first contact to won or lost.
package leads

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/table"
	"github.com/gemworker/gem/handlers/value"
)

// Leads has the tools of the domain.
type Leads struct{}

//go:embed *.sql
var tables embed.FS

// Domain returns the domain leads.
func Domain() handlers.Domain {
	return handlers.Domain{
		Tools:  Leads{},
		Tables: tables,
		Grants: []string{
			"select, insert, update on public.leads",
			"select, insert, update on public.lead_sources",
			"select, insert, update on public.lead_photo_links",
			"select, insert, update on public.lead_stage_changes",
		},
	}
}

// CreateLead is a person who requests work. The registry keys the tool by phone: a second call with the same phone gets
// the first call's lead. The phone is compared and stored unchanged.
type CreateLead struct {
	Name   string `json:"name"`
	Phone  string `json:"phone"`
	Suburb string `json:"suburb"`
	Email  string `json:"email"`
	Source string `json:"source"` // other by default
	Notes  string `json:"notes"`
}

// Ref names the lead that was created or changed.
type Ref struct {
	LeadID string `json:"lead_id"`
}

// Create is leads.create. A lead begins in the stage new.
func (Leads) Create(ctx context.Context, tx handlers.Tx, call *handlers.Call, in CreateLead) (Ref, error) {
	id, err := table.Insert(ctx, tx, call, "leads", `insert into public.leads (name, phone, suburb, email, source, stage,
		notes, call_id)
		values ($1, $2, $3, $4, $5, 'new', $6, $7) returning id::text`,
		in.Name, in.Phone, in.Suburb, table.Null(in.Email), cmp.Or(in.Source, "other"), table.Null(in.Notes), call.ID)
	return Ref{LeadID: id}, err
}

// UpdateStage moves a lead to a stage.
type UpdateStage struct {
	LeadID string `json:"lead_id"`
	Stage  string `json:"stage"`
	Notes  string `json:"notes"`
}

// UpdateStage is leads.update_stage. The change is added to the lead's history; if the lead is already in that stage,
// only notes are added.
func (Leads) UpdateStage(ctx context.Context, tx handlers.Tx, call *handlers.Call, in UpdateStage) (Ref, error) {
	return move(ctx, tx, call, in.LeadID, in.Stage, "", in.Notes)
}

// MarkLost moves a lead to the stage lost and stores the reason.
type MarkLost struct {
	LeadID string `json:"lead_id"`
	Reason string `json:"reason"`
	Notes  string `json:"notes"`
}

// MarkLost is leads.mark_lost. It is [Leads.UpdateStage] to lost, with a reason.
func (Leads) MarkLost(ctx context.Context, tx handlers.Tx, call *handlers.Call, in MarkLost) (Ref, error) {
	return move(ctx, tx, call, in.LeadID, "lost", in.Reason, in.Notes)
}

func move(ctx context.Context, tx handlers.Tx, call *handlers.Call, leadID, stage, reason, notes string) (out Ref,
	err error) {
	var change *string
	err = table.Row(ctx, tx, "leads", leadID, `with lead as (select id, stage, lost_reason from public.leads
		where id = $1 for update),
		moved as (
			update public.leads set stage = $2, lost_reason = case when $2 = 'lost' then coalesce($3, leads.lost_reason) end,
				updated_at = now()
			from lead where leads.id = lead.id returning leads.id),
		noted as (
			insert into public.lead_stage_changes (lead_id, from_stage, to_stage, reason, notes, call_id)
			select id, stage, $2, $3, $4, $5 from lead
			where stage <> $2 or $4::text is not null or ($3::text is not null and lost_reason is distinct from $3)
			returning id)
		select moved.id::text, (select id::text from noted) from moved`,
		[]any{stage, table.Null(reason), table.Null(notes), call.ID}, &out.LeadID, &change)
	if err != nil {
		return out, err
	}
	call.Wrote("leads", handlers.Update, out.LeadID)
	if change != nil {
		call.Wrote("lead_stage_changes", handlers.Insert, *change)
	}
	return out, nil
}

// AddSource adds a source to a lead, next to its first one.
type AddSource struct {
	LeadID   string          `json:"lead_id"`
	Source   string          `json:"source"`
	Campaign json.RawMessage `json:"campaign"`
}

// AddSource is leads.add_source. The same source with the same campaign is kept once.
func (Leads) AddSource(ctx context.Context, tx handlers.Tx, call *handlers.Call, in AddSource) (out Ref, err error) {
	var added *string
	err = table.Row(ctx, tx, "leads", in.LeadID, `with lead as (select id from public.leads where id = $1 for update),
		added as (
			insert into public.lead_sources (lead_id, source, campaign, call_id)
			select id, $2, $3, $4 from lead where not exists (
				select from public.lead_sources s where s.lead_id = lead.id and s.source = $2 and s.campaign is not distinct
					from $3)
			returning id)
		select lead.id::text, (select id::text from added) from lead`,
		[]any{in.Source, table.NullJSON(in.Campaign), call.ID}, &out.LeadID, &added)
	switch {
	case err != nil:
		return out, err
	case added != nil:
		call.Wrote("lead_sources", handlers.Insert, *added)
	default:
		call.Read("lead_sources", 1)
	}
	return out, nil
}

// AddPhotosLink adds links to photos of a lead's place, in the order given.
type AddPhotosLink struct {
	LeadID string   `json:"lead_id"`
	Links  []string `json:"links"`
}

// AddPhotosLink is leads.add_photos_link.
func (Leads) AddPhotosLink(ctx context.Context, tx handlers.Tx, call *handlers.Call, in AddPhotosLink) (out Ref,
	err error) {
	var added []string
	err = table.Row(ctx, tx, "leads", in.LeadID, `with lead as (select id from public.leads where id = $1),
		added as (
			insert into public.lead_photo_links (lead_id, link, position, call_id)
			select id, link, position, $3 from lead, pg_catalog.unnest($2::text[]) with ordinality as given (link, position)
				order by position
			returning id)
		select lead.id::text, array(select id::text from added) from lead`,
		[]any{in.Links, call.ID}, &out.LeadID, &added)
	for _, link := range added {
		call.Wrote("lead_photo_links", handlers.Insert, link)
	}
	return out, err
}

// ListByStage lists leads, the newest first. A condition that is left out matches every lead.
type ListByStage struct {
	Stage  string      `json:"stage"`
	Suburb string      `json:"suburb"` // compared without case
	Source string      `json:"source"` // the first one or one that was added
	Limit  value.Limit `json:"limit"`  // 50 by default
}

// Listed is the result of [ListByStage].
type Listed struct {
	Leads []Lead `json:"leads"`
}

// Lead is a listed lead, with its latest 10 changes of stage and at most 50 sources and photos.
type Lead struct {
	LeadID     string        `json:"lead_id"`
	Name       string        `json:"name"`
	Phone      string        `json:"phone"`
	Suburb     string        `json:"suburb"`
	Email      *string       `json:"email,omitempty"`
	Source     string        `json:"source"`
	Stage      string        `json:"stage"`
	Notes      *string       `json:"notes,omitempty"`
	LostReason *string       `json:"lost_reason,omitempty"`
	CreatedAt  value.Time    `json:"created_at"`
	UpdatedAt  value.Time    `json:"updated_at"`
	Sources    []LeadSource  `json:"sources"`     // added after the first
	PhotoLinks []string      `json:"photo_links"` // in the order they were added
	History    []StageChange `json:"history"`     // the latest first
}

// LeadSource is a source that was added to a lead.
type LeadSource struct {
	Source   string          `json:"source"`
	Campaign json.RawMessage `json:"campaign,omitempty"`
	AddedAt  value.Time      `json:"added_at"`
}

// StageChange is a move of a lead, or a note where both stages are the same.
type StageChange struct {
	FromStage string     `json:"from_stage"`
	ToStage   string     `json:"to_stage"`
	Reason    *string    `json:"reason,omitempty"`
	Notes     *string    `json:"notes,omitempty"`
	At        value.Time `json:"at"`
}

// ListByStage is leads.list_by_stage.
func (Leads) ListByStage(ctx context.Context, tx handlers.Tx, call *handlers.Call, in ListByStage) (Listed, error) {
	where := `true`
	if in.Stage != "" {
		where = `l.stage = $1` // by itself, so that the index over stages serves it
	}
	leads, err := table.List[Lead](ctx, tx, call, "leads", `
		select l.id::text, l.name, l.phone, l.suburb, l.email, l.source, l.stage, l.notes, l.lost_reason,
			l.created_at, l.updated_at,
			coalesce((select pg_catalog.jsonb_agg(jsonb_strip_nulls(pg_catalog.jsonb_build_object('source', source, 'added_at',
				created_at))
					|| case when campaign is null then '{}' else pg_catalog.jsonb_build_object('campaign', campaign) end
						order by created_at, id)
				from (select * from public.lead_sources s where s.lead_id = l.id order by created_at, id limit 50) s), '[]'),
			array(select link from public.lead_photo_links p where p.lead_id = l.id order by created_at, call_id,
				position limit 50),
			coalesce((select pg_catalog.jsonb_agg(jsonb_strip_nulls(pg_catalog.jsonb_build_object('from_stage', from_stage,
				'to_stage', to_stage,
					'reason', reason, 'notes', notes, 'at', created_at)) order by created_at desc, id)
				from (select * from public.lead_stage_changes c where c.lead_id = l.id order by created_at desc, id limit 10) c),
					'[]')
		from public.leads l
		where `+where+` and ($1 = '' or l.stage = $1) and ($2 = '' or lower(l.suburb) = lower($2))
			and ($3 = '' or l.source = $3 or exists (select from public.lead_sources s where s.lead_id = l.id and s.source = $3))
		order by l.created_at desc, l.id limit $4`,
		in.Stage, in.Suburb, in.Source, in.Limit.Or(50, 100))
	return Listed{Leads: leads}, err
}
