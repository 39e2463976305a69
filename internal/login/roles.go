package login

import (
	"fmt"
	"slices"
	"strings"
)

// Roles are the members of each role: names of users, groups with a leading @, and * for everyone. A role without an
// entry has no members, except viewer, which then includes everyone.
type Roles map[string][]string

// ParseRoles reads roles such as `operator=ada,@ops viewer=*`.
func ParseRoles(text string) (Roles, error) {
	all := Roles{}
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ';' }) {
		role, members, found := strings.Cut(part, "=")
		if !found || role != "viewer" && role != "operator" || members == "" {
			return nil, fmt.Errorf("%q is not a role with members, such as operator=ada,@ops or viewer=*", part)
		}
		for _, m := range strings.Split(members, ",") {
			if m == "" || m == "@" {
				return nil, fmt.Errorf("%q has a member without a name", part)
			}
			all[role] = append(all[role], m)
		}
	}
	return all, nil
}

// of returns the roles of a user who is in these groups. An operator is a viewer too.
func (r Roles) of(user string, groups []string) (operator, viewer bool) {
	has := func(role string) bool {
		return slices.ContainsFunc(r[role], func(m string) bool {
			group, isGroup := strings.CutPrefix(m, "@")
			return m == "*" || !isGroup && m == user || isGroup && slices.Contains(groups, group)
		})
	}
	operator = has("operator")
	return operator, operator || r["viewer"] == nil || has("viewer")
}
