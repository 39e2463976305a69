package dashboard_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
)

// shownToViewers are the places of a museum whose texts a viewer may see: names, and the messages of failures.
var shownToViewers = []string{"tool", "session", "caller", "key", "worker", "description", "permission", "schema",
	"message", "step", "answerer"}

// The views of gem_monitor have no inputs, no results, and no places where an SQL function failed.
func TestAViewerSeesNoInputResultOrContextOnAnyPage(t *testing.T) {
	t.Parallel()
	secret := map[string]bool{}
	m := newMuseum(t, func(place string) string {
		if slices.Contains(shownToViewers, place) {
			return "public " + place
		}
		marker := "SECRET-" + strings.ReplaceAll(place, " ", "-") + "."
		secret[marker] = false
		return marker
	})
	for user, subject := range map[string]string{"vera": "", "eve": "eve"} {
		for _, s := range m.walk(t, dashboard.User{Name: user, Subject: subject}) {
			if i := strings.Index(s.body, "SECRET-"); i >= 0 {
				t.Errorf("%s shows %s: …%s…", user, s.path, s.body[max(0, i-200):min(len(s.body), i+100)])
			}
		}
	}
	// The texts are on the pages: an operator sees them.
	for _, s := range m.walk(t, dashboard.User{Name: "ada", Subject: "ada", Operator: true}) {
		for marker := range secret {
			secret[marker] = secret[marker] || strings.Contains(s.body, marker)
		}
	}
	for marker, seen := range secret {
		if !seen {
			t.Errorf("not even an operator sees %s", marker)
		}
	}
}

func TestAnOperatorSeesWhereAFunctionFailedOnThePageOfTheCall(t *testing.T) {
	t.Parallel()
	m := newMuseum(t, func(place string) string { return "the " + place })
	m.user = dashboard.User{Name: "ada", Operator: true}
	for id, context := range map[string]string{m.failed: "the context", m.retried: "the context of a retry"} {
		_, page := get(t, m.server, "/calls/"+id)
		says(t, page, "Where it failed</h3>", ">"+context+"</pre>")
		_, json := get(t, m.server, "/calls/"+id+".json")
		says(t, json, `"context":"`+context+`"`)
	}
	_, page := get(t, m.server, "/calls/"+m.agent)
	lacks(t, page, "Where it failed")
}
