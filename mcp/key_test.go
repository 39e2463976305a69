package mcp

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestTheIDOfAKeyIsThatOfSubjectToolAndKeyAlone(t *testing.T) {
	t.Parallel()
	seen := map[string][3]string{}
	for _, of := range [][3]string{{"a", "b", "c"}, {"ab", "", "c"}, {"a", "bc", ""}, {"", "ab", "c"}, {"a", "", "bc"},
		{"a\x00b", "", "c"}, {"a", "\x00b", "c"}, {"b", "a", "c"}} {
		id := rowID(of[0], of[1], of[2])
		if other, ok := seen[id]; ok {
			t.Errorf("%q and %q have one id", of, other)
		}
		if seen[id] = of; rowID(of[0], of[1], of[2]) != id {
			t.Errorf("%q has two", of)
		}
		if u := uuid.MustParse(id); u.Version() != 8 || u.Variant() != uuid.RFC4122 {
			t.Errorf("%s is of version %d", id, u.Version())
		}
	}
	// Other processes, and later versions, must compute the same id: a change would let calls run twice.
	if got := rowID("ada", "shop.order", "k"); got != "8770115b-2459-87e7-b328-746cbdf2eaa2" {
		t.Errorf("the id of ada, shop.order and k is %s", got)
	}
}

func TestAKeyComesFromOnePlaceOrIsTheSameInAll(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	for name, tc := range map[string]struct {
		meta     map[string]any
		header   string
		argument *string
		want     string // or "error"
		chosen   bool
	}{
		"none":          {},
		"_meta":         {meta: map[string]any{keyName: "k"}, want: "k", chosen: true},
		"header":        {header: "k", want: "k", chosen: true},
		"quoted header": {header: ` "k" `, want: "k", chosen: true},
		"argument":      {argument: text("k"), want: "k", chosen: true},
		"all the same": {meta: map[string]any{keyName: "k"}, header: "k", argument: text("k"), want: "k",
			chosen: true},
		"two that differ":    {meta: map[string]any{keyName: "k"}, header: "l", want: "error"},
		"empty":              {argument: text(""), want: "error"},
		"too long":           {header: strings.Repeat("k", 256), want: "error"},
		"longest":            {header: strings.Repeat("k", 255), want: strings.Repeat("k", 255), chosen: true},
		"NUL":                {meta: map[string]any{keyName: "k\x00"}, want: "error"},
		"no string":          {meta: map[string]any{keyName: 7.0}, want: "error"},
		"Claude Code's":      {meta: map[string]any{"claudecode/toolUseId": "t"}, want: "t"},
		"Claude Code's, odd": {meta: map[string]any{"claudecode/toolUseId": 7.0}},
		"ours before another": {meta: map[string]any{"claudecode/toolUseId": "t"}, argument: text("k"), want: "k",
			chosen: true},
	} {
		header := http.Header{}
		if tc.header != "" {
			header.Set("Idempotency-Key", tc.header)
		}
		key, chosen, err := theKey(tc.meta, header, tc.argument)
		if tc.want == "error" {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		} else if err != nil || key != tc.want || chosen != tc.chosen {
			t.Errorf("%s: got %q, %v, %v", name, key, chosen, err)
		}
	}
}

// A user who knows another's subject and guesses a key must not be able to insert a call of their own under the id of
// that key: the other's requests would be refused.
func TestNoUserCanTakeTheIDOfAnothersKey(t *testing.T) {
	t.Parallel()
	o := openShop(t, true)
	insert := func(sub, tool, id string) error {
		pool, role, err := o.server.database(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return client.As(t.Context(), pool, client.Subject{ID: sub, Role: role}, func(db client.DB) error {
			_, err := client.Enqueue(t.Context(), db, client.NewCall{ID: id, Tool: tool})
			return err
		})
	}
	for what, id := range map[string]string{"another's": rowID("ada", "shop.order", "k"),
		"one of another tool": rowID("bob", "shop.list", "k")} {
		err := insert("bob", "shop.order", id)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "23514" || !strings.Contains(refused.Message, "of version 8") {
			t.Errorf("the id of a key, %s: got %v", what, err)
		}
	}
	if r := o.server.agent(t, "ada", nil).call("shop_order", `{"item": "a"}`, keyName, "k"); r.IsError {
		t.Errorf("the key's own user: %s", textIn(r))
	}
	if err := insert("bob", "shop.order", rowID("bob", "shop.order", "k")); err != nil {
		t.Errorf("the id of one's own key: %v", err)
	}
}
