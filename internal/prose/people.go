package prose

import (
	"fmt"
	"strings"
)

// Answerers names the people who may answer a question, by the entries of its `by`.
func Answerers(by []string) string {
	var people, roles []string
	for _, entry := range by {
		entry = Cut(Printable(entry), 300)
		kind, name, _ := strings.Cut(entry, ":")
		switch {
		case kind == "role" && name != "":
			roles = append(roles, name)
		case kind == "user" && name != "":
			people = append(people, "the user "+name)
		case entry == "owner":
			people = append(people, "the caller")
		case entry == "service":
			people = append(people, "a server")
		default:
			people = append(people, entry)
		}
	}
	if len(roles) > 0 {
		people = append(people, "someone with the role "+strings.Join(roles, " or "))
	}
	return Cut(strings.Join(people, " or "), 300)
}

// exclusion returns a sentence that the caller may not approve the call, if the call names a caller.
func exclusion(createdBy string) string {
	if createdBy == "" {
		return ""
	}
	return fmt.Sprintf(" The person who made the call, %s, may not approve it.", Cut(Printable(createdBy), 200))
}
