package dashboard

import "regexp"

var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// isID reports whether a text has the form of a call's id. Postgres refuses any other.
func isID(text string) bool { return uuidForm.MatchString(text) }
