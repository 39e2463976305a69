package cli

import (
	"regexp"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// The commands of docs/tutorial.md are run in an empty folder, and print what it shows.
func TestTheTutorialIsFollowed(t *testing.T) {
	t.Parallel()
	f := &follower{root: fromRoot(t, "."), dir: reachableFolder(t), env: map[string]string{}}
	f.follow(t, "docs/tutorial.md", "Change something", nil)
	if f.calls != 14 || f.shown != 6 {
		t.Errorf("%d calls are made, and %d results shown", f.calls, f.shown)
	}
}

// The guide to MCP names orders that gem init sql makes, and that the tutorial leaves alone.
func TestTheGuideToMCPNamesOrdersThatAreThere(t *testing.T) {
	t.Parallel()
	db, err := pgx.Connect(t.Context(), newDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	if _, err := db.PgConn().Exec(t.Context(), readPage(t, "internal/cli/first/sql/tools.sql")).ReadAll(); err != nil {
		t.Fatal(err)
	}
	ofTutorial := regexp.MustCompile(`\d+`).FindAllString(readPage(t, "docs/tutorial.md"), -1)
	named := regexp.MustCompile(`(?:amount (\d+), )?order_id\W+(\d+)(?:.{1,15}amount\W+(\d+))?`).
		FindAllStringSubmatch(readPage(t, "docs/mcp.md"), -1)
	if len(named) != 3 {
		t.Errorf("docs/mcp.md names %d orders, want 3", len(named))
	}
	for _, n := range named {
		order, amount := n[2], n[1]+n[3]
		var left bool
		err := db.QueryRow(t.Context(), "select coalesce(max(total) >= $2::numeric, false) from orders where id = $1::bigint",
			order, amount).Scan(&left)
		if err != nil {
			t.Fatal(err)
		}
		if !left || slices.Contains(ofTutorial, order) {
			t.Errorf("docs/mcp.md: the order %s is not in tools.sql or is smaller than %s, or docs/tutorial.md uses it", order,
				amount)
		}
	}
}
