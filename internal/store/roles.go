package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Role is a row of gem.roles: see migrations/functions/answers.sql.
type Role struct{ Subject, Role string }

// RoleChange changes gem.roles, and reports whether anything changed.
type RoleChange func(ctx context.Context, db DB, r Role) (changed bool, err error)

// AddRole gives a subject a role.
func AddRole(ctx context.Context, db DB, r Role) (bool, error) {
	tag, err := db.Exec(ctx, "insert into gem.roles (subject, role) values ($1, $2) on conflict do nothing", r.Subject,
		r.Role)
	return tag.RowsAffected() > 0, err
}

// RemoveRole takes a role from a subject.
func RemoveRole(ctx context.Context, db DB, r Role) (bool, error) {
	tag, err := db.Exec(ctx, "delete from gem.roles where subject = $1 and role = $2", r.Subject, r.Role)
	return tag.RowsAffected() > 0, err
}

// ClosedRole is a row of gem.role_settings.
type ClosedRole struct {
	Role string
	At   time.Time
	By   string
}

// CloseRole closes a role to questions from users, and reports whether it was open.
func CloseRole(ctx context.Context, db DB, role string) (bool, error) {
	tag, err := db.Exec(ctx, "insert into gem.role_settings (role, closed_at, closed_by) values ($1, gem.now(), "+
		"session_user) on conflict do nothing", role)
	return tag.RowsAffected() > 0, err
}

// OpenRole opens a role to questions from users, and reports whether it was closed.
func OpenRole(ctx context.Context, db DB, role string) (bool, error) {
	tag, err := db.Exec(ctx, "delete from gem.role_settings where role = $1", role)
	return tag.RowsAffected() > 0, err
}

// ClosedRoles returns the roles that are closed to questions from users.
func ClosedRoles(ctx context.Context, db DB) ([]ClosedRole, error) {
	rows, err := db.Query(ctx, "select role, closed_at, closed_by from gem.role_settings order by role")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[ClosedRole])
}

// PrepareTakeRoles creates the table of the roles that [TakeRoles] has granted, in a private database.
func PrepareTakeRoles(ctx context.Context, db DB) error {
	_, err := db.Exec(ctx, `create schema if not exists gem_dev;
		create table if not exists gem_dev.granted (subject text, role text, primary key (subject, role))`)
	return err
}

// TakeRoles grants each role that an open question names to the session's user and to others, and returns what it
// granted. It grants nothing twice: a role that someone removed is not granted again.
func TakeRoles(ctx context.Context, db DB, others ...string) ([]Role, error) {
	rows, err := db.Query(ctx, `
		with named as (
			select distinct subject, substr(word, 6) as role
			from public.core_tool_calls c, pg_catalog.unnest(c.answer_by) word,
				pg_catalog.unnest(pg_catalog.array_append($1::text[], session_user::text)) subject
			where c.status = 'waiting' and c.waits_for = 'answer' and word like 'role:%'
		), first as (
			insert into gem_dev.granted select subject, role from named on conflict do nothing returning subject, role
		)
		insert into gem.roles (subject, role) select subject, role from first order by role, subject
		on conflict do nothing returning subject, role`, others)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Role])
}

// Roles returns all roles, sorted by subject.
func Roles(ctx context.Context, db DB) ([]Role, error) {
	rows, err := db.Query(ctx, "select subject, role from gem.roles order by subject, role")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Role])
}
