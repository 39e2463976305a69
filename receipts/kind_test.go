package receipts_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

// codeConst finds the codes of receipt.go, so that none is left out here.
var codeConst = regexp.MustCompile(`(?m)^\t\w+ +Code = "(\w+)"`)

func TestGoAndSQLAgreeOnTheKindOfEachCode(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("receipt.go")
	if err != nil {
		t.Fatal(err)
	}
	db := testdb.Pool(t, testdb.New(t))
	kinds := map[receipts.Kind]int{}
	seen := []string{"", "failed", "shop_is_closed", "CANCELLED"}
	for _, match := range codeConst.FindAllStringSubmatch(string(source), -1) {
		if seen = append(seen, match[1]); !receipts.Code(match[1]).OfGEM() {
			t.Errorf("%s is not a code of GEM", match[1])
		}
	}
	for _, code := range seen {
		var inSQL receipts.Kind
		if err := db.QueryRow(t.Context(), "select gem.failure_kind(nullif($1, ''))", code).Scan(&inSQL); err != nil {
			t.Fatal(err)
		}
		if inGo := receipts.Code(code).Kind(); inGo != inSQL {
			t.Errorf("%q is %s in Go and %s in SQL", code, inGo, inSQL)
		}
		kinds[inSQL]++
	}
	if kinds[receipts.KindRefused] != 7 || kinds[receipts.KindCancelled] != 1 || len(seen) < 22 {
		t.Errorf("of %d codes there are %v", len(seen), kinds)
	}
}

func TestOnlyFailedCallsHaveAKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status string
		code   receipts.Code
		want   string
	}{
		{"succeeded", "", "succeeded"}, {"not_configured", "", "not_configured"}, {"running", "", "running"},
		{"failed", "", "failed"}, {"failed", receipts.Timeout, "failed"}, {"failed", receipts.KeyReused, "refused"},
		{"failed", receipts.Cancelled, "cancelled"},
	} {
		if got := receipts.Ended(c.status, c.code); got != c.want {
			t.Errorf("%s with %q is %s, want %s", c.status, c.code, got, c.want)
		}
	}
}
