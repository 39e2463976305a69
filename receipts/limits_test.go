package receipts_test

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
)

// A limit holds for a document before it is stored, and when it is read again, so both must have the same size.
func TestADocumentHasTheSizeThatPostgresPrints(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.NewEmpty(t))
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	digits := func(most int) string {
		return strings.Repeat(pick("0", "1", "90", "05"), r.IntN(most)) + strconv.Itoa(r.IntN(100))
	}
	number := func() string {
		whole := strings.TrimLeft(digits(5), "0")
		if whole == "" {
			whole = "0"
		}
		n := pick("", "-") + whole
		if r.IntN(2) == 0 {
			n += "." + digits(5)
		}
		if r.IntN(2) == 0 {
			n += pick("e", "E") + pick("", "+", "-") + strconv.Itoa(r.IntN(405))
		}
		return n
	}
	var value func(depth int) string
	value = func(depth int) string {
		switch n := r.IntN(8); {
		case n == 0 && depth > 0:
			return "[" + value(depth-1) + pick(",", " , ") + value(depth-1) + "]"
		case n == 1 && depth > 0:
			return `{"a": ` + value(depth-1) + pick(`,"b":`, `,"a":`, `, "\u0061" : `) + value(depth-1) + pick("", "\n") + "}"
		case n < 5:
			return number()
		case n == 5:
			return pick("true", "false", "null", "{}", "[]", "[ ]")
		}
		return `"` + pick("", "a", "é", `\u00e9`, `\u003c`, `\/`, `\n`, `\u000a`, `\u0001`, `\"`, `\\`, `\u0022`,
			`\ud83d\ude00`, "😀", `\u20ac`, `\b\f\r\t`, "\u007f") + `"`
	}
	for range 3000 {
		given := value(4)
		var printed string
		if receipts.Excess(json.RawMessage(given)) != "" {
			continue
		}
		document := string(receipts.WithoutRepeatedKeys(json.RawMessage(given)))
		if err := db.QueryRow(t.Context(), "select $2::jsonb::text from (select $1::jsonb = $2::jsonb) s (same) where same",
			given, document).Scan(&printed); err != nil {
			t.Fatal(err)
		}
		if got := receipts.PrintedSize(json.RawMessage(document)); got != len(printed) {
			t.Fatalf("%s: %d bytes, and Postgres prints %d: %s", document, got, len(printed), printed)
		}
		if excess := receipts.Excess(json.RawMessage(printed)); excess != "" {
			t.Fatalf("%s: as Postgres prints it, it has %s", document, excess)
		}
	}
}
