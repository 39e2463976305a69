package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Entity is the domain entity: the people and companies that one deals with, and what passed between.
type Entity struct{}

// CreateEntity is a person or a company.
type CreateEntity struct {
	EntityType string          `json:"entity_type"`
	Name       string          `json:"name"`
	Contact    json.RawMessage `json:"contact"` // phone, email, address, …: any keys
	Notes      string          `json:"notes"`
}

// EntityCreated names the new entity.
type EntityCreated struct {
	EntityID string `json:"entity_id"`
}

// Create is entity.create.
func (Entity) Create(ctx context.Context, tx Tx, call *Call, in CreateEntity) (EntityCreated, error) {
	var out EntityCreated
	err := tx.QueryRow(ctx, `insert into entities (entity_type, name, contact, notes, call_id)
		values ($1, $2, coalesce($3, '{}'::jsonb), $4, $5) returning id::text`,
		in.EntityType, in.Name, orNullJSON(in.Contact), orNull(in.Notes), call.ID).Scan(&out.EntityID)
	if err != nil {
		return EntityCreated{}, fmt.Errorf("insert the entity: %w", err)
	}
	call.Wrote("entities", Insert, out.EntityID)
	return out, nil
}

// UpdateEntity changes what its patch names and leaves the rest. contact is changed key by key: a key with null is removed,
// one that is not named stays.
type UpdateEntity struct {
	EntityID string          `json:"entity_id"`
	Patch    json.RawMessage `json:"patch"`
}

// EntityChanged names the entity that was changed.
type EntityChanged struct {
	EntityID string `json:"entity_id"`
}

var entityColumns = map[string]rule{
	"entity_type": oneOf("client", "supplier", "partner", "friend", "lead", "other"),
	"name":        text(200),
	"contact":     object,
	"notes":       orEmpty(text(0)),
}

// Update is entity.update.
func (Entity) Update(ctx context.Context, tx Tx, call *Call, in UpdateEntity) (EntityChanged, error) {
	patch, err := readPatch(in.Patch, entityColumns)
	if err != nil {
		return EntityChanged{}, err
	}
	id, err := rowID("entities", in.EntityID)
	if err != nil {
		return EntityChanged{}, err
	}
	statement, args := `update entities set
			entity_type = coalesce($2::jsonb ->> 'entity_type', entity_type),
			name        = coalesce($2::jsonb ->> 'name', name),
			notes       = case when $2::jsonb ? 'notes' then $2::jsonb ->> 'notes' else notes end,
			contact     = case when $2::jsonb ? 'contact' then (contact || ($2::jsonb -> 'contact'))
				- array(select key from jsonb_each($2::jsonb -> 'contact') where value = 'null') else contact end,
			updated_at  = now()
		where id = $1 returning id::text`, []any{id, patch}
	if len(patch) == 0 {
		statement, args = `select id::text from entities where id = $1`, []any{id}
	}
	var out EntityChanged
	err = tx.QueryRow(ctx, statement, args...).Scan(&out.EntityID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return EntityChanged{}, NotFound("entities", id)
	case err != nil:
		return EntityChanged{}, fmt.Errorf("update the entity: %w", err)
	}
	if len(patch) == 0 {
		call.Read("entities", 1)
	} else {
		call.Wrote("entities", Update, out.EntityID)
	}
	return out, nil
}

// SearchEntities finds the entities in whose name, notes or contact values every word of the query occurs: those with all
// words in the name first, then by name.
type SearchEntities struct {
	Query      string `json:"query"`
	EntityType string `json:"entity_type"`
	Limit      Limit  `json:"limit"` // 20 by default
}

// EntitiesFound is the answer to [SearchEntities].
type EntitiesFound struct {
	Results []EntityCard `json:"results"`
}

// EntityCard is an entity as it is found.
type EntityCard struct {
	EntityID   string          `json:"entity_id"`
	EntityType string          `json:"entity_type"`
	Name       string          `json:"name"`
	Contact    json.RawMessage `json:"contact"`
	Notes      *string         `json:"notes,omitempty"`
	CreatedAt  Time            `json:"created_at"`
	UpdatedAt  Time            `json:"updated_at"`
}

// Search is entity.search.
func (Entity) Search(ctx context.Context, tx Tx, call *Call, in SearchEntities) (EntitiesFound, error) {
	rows, err := tx.Query(ctx, `select id::text, entity_type, name, contact, notes, created_at, updated_at from entities
		where ($2 = '' or entity_type = $2)
			and concat_ws(' ', name, notes, (select string_agg(value #>> '{}', ' ') from jsonb_each(
				case when jsonb_typeof(contact) = 'object' then contact else '{}' end))) ilike all ($1::text[])
		order by name ilike all ($1::text[]) desc, name, id limit $3`, words(in.Query), in.EntityType, in.Limit.or(20, 50))
	if err != nil {
		return EntitiesFound{}, fmt.Errorf("search the entities: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[EntityCard])
	if err != nil {
		return EntitiesFound{}, fmt.Errorf("search the entities: %w", err)
	}
	call.Read("entities", len(found))
	return EntitiesFound{Results: found}, nil
}

// GetEntity asks for one entity.
type GetEntity struct {
	EntityID string `json:"entity_id"`
}

// EntityGot is the answer to [GetEntity].
type EntityGot struct {
	Entity EntityRecord `json:"entity"`
}

// EntityRecord is an entity with its latest 20 interactions, the latest first.
type EntityRecord struct {
	EntityCard
	Interactions []Interaction `json:"interactions"`
}

// Interaction is something that passed between an entity and the team.
type Interaction struct {
	InteractionID   string          `json:"interaction_id"`
	InteractionType string          `json:"interaction_type"`
	Summary         string          `json:"summary"`
	Details         json.RawMessage `json:"details,omitempty"`
	OccurredAt      Time            `json:"occurred_at"`
}

// Get is entity.get.
func (Entity) Get(ctx context.Context, tx Tx, call *Call, in GetEntity) (EntityGot, error) {
	id, err := rowID("entities", in.EntityID)
	if err != nil {
		return EntityGot{}, err
	}
	var e EntityRecord
	err = tx.QueryRow(ctx, `select id::text, entity_type, name, contact, notes, created_at, updated_at,
			coalesce((select jsonb_agg(jsonb_build_object('interaction_id', id, 'interaction_type', interaction_type, 'summary', summary,
					'occurred_at', occurred_at) || case when details is null then '{}' else jsonb_build_object('details', details) end
					order by occurred_at desc, id)
				from (select * from interactions i where i.entity_id = entities.id order by occurred_at desc, id limit 20) i), '[]')
		from entities where id = $1`, id).
		Scan(&e.EntityID, &e.EntityType, &e.Name, &e.Contact, &e.Notes, &e.CreatedAt, &e.UpdatedAt, &e.Interactions)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return EntityGot{}, NotFound("entities", id)
	case err != nil:
		return EntityGot{}, fmt.Errorf("read the entity: %w", err)
	}
	call.Read("entities", 1)
	call.Read("interactions", len(e.Interactions))
	return EntityGot{Entity: e}, nil
}

// AddInteraction is something that passed between an entity and the team.
type AddInteraction struct {
	EntityID        string          `json:"entity_id"`
	InteractionType string          `json:"interaction_type"`
	Summary         string          `json:"summary"`
	Details         json.RawMessage `json:"details"`
	OccurredAt      *Time           `json:"occurred_at"` // now by default
}

// InteractionAdded names the new interaction.
type InteractionAdded struct {
	InteractionID string `json:"interaction_id"`
}

// AddInteraction is entity.add_interaction.
func (Entity) AddInteraction(ctx context.Context, tx Tx, call *Call, in AddInteraction) (InteractionAdded, error) {
	return addInteraction(ctx, tx, call, in)
}

func addInteraction(ctx context.Context, tx Tx, call *Call, in AddInteraction) (InteractionAdded, error) {
	id, err := rowID("entities", in.EntityID)
	if err != nil {
		return InteractionAdded{}, err
	}
	var out InteractionAdded
	// Inserted from the entity's row, so that an entity that does not exist is no error of the transaction.
	err = tx.QueryRow(ctx, `insert into interactions (entity_id, interaction_type, summary, details, occurred_at, call_id)
		select id, $2, $3, $4, coalesce($5, now()), $6 from entities where id = $1 returning id::text`,
		id, in.InteractionType, in.Summary, orNullJSON(in.Details), in.OccurredAt, call.ID).Scan(&out.InteractionID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return InteractionAdded{}, NotFound("entities", id)
	case err != nil:
		return InteractionAdded{}, fmt.Errorf("insert the interaction: %w", err)
	}
	call.Wrote("interactions", Insert, out.InteractionID)
	return out, nil
}
