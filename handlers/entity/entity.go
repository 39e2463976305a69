// Package entity is the domain entity: the people and companies that a team deals with, and its interactions with them.
package entity

import (
	"context"
	"embed"
	"encoding/json"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/table"
	"github.com/gemworker/gem/handlers/value"
)

// Entity has the tools of the domain.
type Entity struct{}

//go:embed *.sql
var tables embed.FS

// Domain returns the domain entity.
func Domain() handlers.Domain {
	return handlers.Domain{
		Tools:  Entity{},
		Tables: tables,
		Grants: []string{
			"select, insert, update on public.entities",
			"select, insert, update on public.interactions",
		},
	}
}

// CreateEntity is a person or a company.
type CreateEntity struct {
	EntityType string          `json:"entity_type"`
	Name       string          `json:"name"`
	Contact    json.RawMessage `json:"contact"` // phone, email, address, …: any keys
	Notes      string          `json:"notes"`
}

// Ref names the entity that was created or changed.
type Ref struct {
	EntityID string `json:"entity_id"`
}

// Create is entity.create.
func (Entity) Create(ctx context.Context, tx handlers.Tx, call *handlers.Call, in CreateEntity) (Ref, error) {
	id, err := table.Insert(ctx, tx, call, "entities", `insert into public.entities (entity_type, name, contact, notes,
		call_id)
		values ($1, $2, coalesce($3, '{}'::jsonb), $4, $5) returning id::text`,
		in.EntityType, in.Name, table.NullJSON(in.Contact), table.Null(in.Notes), call.ID)
	return Ref{EntityID: id}, err
}

// UpdateEntity changes the columns that its patch names. contact is changed key by key: a key with null is removed, and
// a missing key remains.
type UpdateEntity struct {
	EntityID string          `json:"entity_id"`
	Patch    json.RawMessage `json:"patch"`
}

var columns = map[string]value.Rule{
	"entity_type": value.OneOf("client", "supplier", "partner", "friend", "lead", "other"),
	"name":        value.Text(200),
	"contact":     value.Object,
	"notes":       value.OrNull(value.Text(0)),
}

// Update is entity.update.
func (Entity) Update(ctx context.Context, tx handlers.Tx, call *handlers.Call, in UpdateEntity) (Ref, error) {
	id, err := table.Patch(ctx, tx, call, "public.entities", in.EntityID, in.Patch, columns, `update public.entities set
			entity_type = coalesce($2::jsonb ->> 'entity_type', entity_type),
			name        = coalesce($2::jsonb ->> 'name', name),
			notes       = case when $2::jsonb ? 'notes' then $2::jsonb ->> 'notes' else notes end,
			contact     = case when $2::jsonb ? 'contact' then (contact || ($2::jsonb -> 'contact'))
				- array(select key from jsonb_each($2::jsonb -> 'contact') where value = 'null') else contact end,
			updated_at  = now()
		where id = $1 returning id::text`)
	return Ref{EntityID: id}, err
}

// SearchEntities finds the entities in whose name, notes or contact values every word of the query occurs: those with
// all words in the name first, then by name.
type SearchEntities struct {
	Query      string      `json:"query"`
	EntityType string      `json:"entity_type"`
	Limit      value.Limit `json:"limit"` // 20 by default
}

// SearchResult is the result of [SearchEntities].
type SearchResult struct {
	Results []Card `json:"results"`
}

// Card is a found entity.
type Card struct {
	EntityID   string          `json:"entity_id"`
	EntityType string          `json:"entity_type"`
	Name       string          `json:"name"`
	Contact    json.RawMessage `json:"contact"`
	Notes      *string         `json:"notes,omitempty"`
	CreatedAt  value.Time      `json:"created_at"`
	UpdatedAt  value.Time      `json:"updated_at"`
}

// Search is entity.search.
func (Entity) Search(ctx context.Context, tx handlers.Tx, call *handlers.Call, in SearchEntities) (
	SearchResult, error) {
	found, err := table.List[Card](ctx, tx, call, "entities", `
		select id::text, entity_type, name, contact, notes, created_at, updated_at from public.entities
		where ($2 = '' or entity_type = $2)
			and pg_catalog.concat_ws(' ', name, notes, (select string_agg(value #>> '{}', ' ') from jsonb_each(
				case when jsonb_typeof(contact) = 'object' then contact else '{}' end))) ilike all ($1::text[])
		order by name ilike all ($1::text[]) desc, name, id limit $3`, value.Words(in.Query), in.EntityType,
		in.Limit.Or(20, 50))
	return SearchResult{Results: found}, err
}

// GetEntity asks for one entity.
type GetEntity struct {
	EntityID string `json:"entity_id"`
}

// Got is the result of [GetEntity].
type Got struct {
	Entity Record `json:"entity"`
}

// Record is an entity with its latest 20 interactions, the latest first.
type Record struct {
	Card
	Interactions []Interaction `json:"interactions"`
}

// Interaction is a contact between an entity and the team.
type Interaction struct {
	InteractionID   string          `json:"interaction_id"`
	InteractionType string          `json:"interaction_type"`
	Summary         string          `json:"summary"`
	Details         json.RawMessage `json:"details,omitempty"`
	OccurredAt      value.Time      `json:"occurred_at"`
}

// Get is entity.get.
func (Entity) Get(ctx context.Context, tx handlers.Tx, call *handlers.Call, in GetEntity) (Got, error) {
	var e Record
	err := table.Row(ctx, tx, "entities", in.EntityID, `select id::text, entity_type, name, contact, notes, created_at,
		updated_at,
			coalesce((select pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('interaction_id', id, 'interaction_type',
				interaction_type, 'summary', summary,
					'occurred_at', occurred_at) || case when details is null then '{}'
						else pg_catalog.jsonb_build_object('details', details) end
					order by occurred_at desc, id)
				from (select * from public.interactions i where i.entity_id = entities.id order by occurred_at desc,
					id limit 20) i), '[]')
		from public.entities where id = $1`, nil,
		&e.EntityID, &e.EntityType, &e.Name, &e.Contact, &e.Notes, &e.CreatedAt, &e.UpdatedAt, &e.Interactions)
	if err == nil {
		call.Read("entities", 1)
		call.Read("interactions", len(e.Interactions))
	}
	return Got{Entity: e}, err
}

// AddInteraction is a contact between an entity and the team.
type AddInteraction struct {
	EntityID        string          `json:"entity_id"`
	InteractionType string          `json:"interaction_type"`
	Summary         string          `json:"summary"`
	Details         json.RawMessage `json:"details"`
	OccurredAt      *value.Time     `json:"occurred_at"` // now by default
}

// InteractionRef names the new interaction.
type InteractionRef struct {
	InteractionID string `json:"interaction_id"`
}

// AddInteraction is entity.add_interaction.
func (Entity) AddInteraction(ctx context.Context, tx handlers.Tx, call *handlers.Call,
	in AddInteraction) (out InteractionRef, err error) {
	err = table.Row(ctx, tx, "entities", in.EntityID,
		`select id from gem_entity.add_interaction($1, $2, $3, $4, $5, $6) id where id is not null`,
		[]any{in.InteractionType, in.Summary, table.NullJSON(in.Details), in.OccurredAt, call.ID}, &out.InteractionID)
	if err == nil {
		call.Wrote("interactions", handlers.Insert, out.InteractionID)
	}
	return out, err
}
