package login

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gemworker/gem/dashboard"
)

const (
	freeTime = time.Minute // how long a name without a role is cached
	mostFree = 1000        // cached names
)

// subjects checks the names of people. A person with the name of a database role could give the answers of that login,
// and service_role answers for everybody.
type subjects struct {
	isRole func(ctx context.Context, name string) (bool, error)
	now    func() time.Time

	mu   sync.Mutex
	free map[string]time.Time // names without a role, and when their entries expire
}

// errTaken rejects a name that a role has.
var errTaken = &dashboard.Refusal{Status: http.StatusForbidden,
	Text: "Your name here is also the name of a role of the database, so your answers could be mistaken for those of " +
		"its " +
		"login. " +
		"You need another name."}

// check returns nil for a name that a person may have, and [errTaken] for the name of a role, ignoring case.
func (s *subjects) check(ctx context.Context, name string) error {
	if strings.EqualFold(name, "service_role") {
		return errTaken
	}
	now := s.now()
	s.mu.Lock()
	until, known := s.free[name]
	s.mu.Unlock()
	if known && now.Before(until) {
		return nil
	}
	switch taken, err := s.isRole(ctx, name); {
	case err != nil:
		return err
	case taken:
		return errTaken
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) >= mostFree || s.free == nil {
		s.free = map[string]time.Time{}
	}
	s.free[name] = now.Add(freeTime)
	return nil
}

// person returns the user with a name and groups, from a proxy or an issuer.
func (d *Authenticator) person(ctx context.Context, name string, groups []string) (dashboard.User, error) {
	if !isName(name) {
		return dashboard.User{}, errNoName
	}
	if err := d.subjects.check(ctx, name); err != nil {
		return dashboard.User{}, err
	}
	operator, viewer := d.o.Roles.of(name, groups)
	if !viewer {
		return dashboard.User{}, &dashboard.Refusal{Status: http.StatusForbidden,
			Text: "You may not see this dashboard: GEM_DASHBOARD_ROLES names neither you, as " +
				name + ", nor one of your groups."}
	}
	return dashboard.User{Name: name, Subject: name, Operator: operator}, nil
}
