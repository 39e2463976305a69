package receipts_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/receipts"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestKeysTellApartWhatDiffers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	keys := map[string]string{}
	for name, value := range map[string]string{
		"a string": `"1"`, "a number": `1`, "another": `"2"`, "quotes": `"\"1\""`, "an equals sign": `"=1"`,
		"a list": `["1"]`,
		"long":   `"` + long + `"`, "longer": `"` + long + `x"`, "a truth": `true`, "the word": `"true"`,
	} {
		key, present := receipts.Key("t.x", "f", json.RawMessage(value))
		if !present || len(key) > 300 {
			t.Errorf("%s: %t %q", name, present, key)
		}
		if other, taken := keys[key]; taken {
			t.Errorf("%s and %s have the key %s", name, other, key)
		}
		keys[key] = name
	}
	for _, absent := range []string{``, `null`, `""`, ` null `} {
		if key, present := receipts.Key("t.x", "f", json.RawMessage(absent)); present {
			t.Errorf("%q has the key %q", absent, key)
		}
	}
}

func TestAClientKeyBelongsToItsCaller(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a:="]{0,6}`)
		a, b := [2]string{text.Draw(t, "caller"), text.Draw(t, "key")}, [2]string{text.Draw(t, "caller"), text.Draw(t, "key")}
		if same := receipts.ClientKey("t.x", a[0], a[1]) == receipts.ClientKey("t.x", b[0], b[1]); same != (a == b) {
			t.Fatalf("%q and %q", a, b)
		}
	})
}

// Whatever an error says, its receipt can be stored.
func TestEveryFailureIsStorable(t *testing.T) {
	t.Parallel()
	db := testdb.Pool(t, testdb.NewEmpty(t))
	rapid.Check(t, func(rt *rapid.T) {
		poison := rapid.StringOf(rapid.RuneFrom([]rune{0, 'a', '\\', '"', 'u', '0', 0xFFFD, 0x2028, '\n'}))
		message := poison.Draw(rt, "message") + string(rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(rt, "bytes"))
		details := rapid.OneOf(
			rapid.Custom(func(t *rapid.T) any { return map[string]string{poison.Draw(t, "k"): poison.Draw(t, "v")} }),
			rapid.Just[any](json.RawMessage(`["\ud800", "\udc00\ud800", "\ud83d\ude00", "\\u0000"]`)),
			rapid.Just[any](math.NaN()),
			rapid.Just[any](strings.Repeat("x", 100_000)),
		).Draw(rt, "details")
		for _, o := range []receipts.Outcome{
			receipts.Failure(receipts.Code(message), message, details),
			receipts.Unconfigured(message, []string{message}, nil),
		} {
			var stored string
			if err := db.QueryRow(t.Context(), "select $1::text::jsonb::text", string(o.Result)).Scan(&stored); err != nil {
				rt.Fatalf("%s: %v", o.Result, err)
			}
			if len(stored) > 100_000 {
				rt.Fatalf("%d bytes", len(stored))
			}
		}
	})
}

// Postgres stores a number such as 1e131071 in a few bytes, and prints it in 131,072.
func TestDetailsThatGrowWhenTheyAreReadAreOmitted(t *testing.T) {
	t.Parallel()
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for in, fits := range map[string]bool{
		`{"a": [1, -2.5e3, "1e999"]}`: true, `"\\"`: true, `["\"", 1]`: true, nested(200): true, "1e308": true, "1e-400": true,
		"[1e131071]": false, "1e309": false, "-1e309": false, "1e99999999999999999999": false, "1e-401": false,
		strings.Repeat("9", 401): false, strings.Repeat("9", 308): true, nested(201): false,
	} {
		got := string(receipts.CleanDetails(json.RawMessage(in)))
		if strings.HasPrefix(got, `{"omitted":"the details have `) == fits {
			t.Errorf("%.40s: %.100s", in, got)
		}
	}
}

func TestCleaningLeavesGoodJSONAlone(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`"\\u0000"`:          `"\\u0000"`,
		`"\\\u0000"`:         `"\\\ufffd"`,
		`"\ud83d\ude00"`:     `"\ud83d\ude00"`,
		`"\ud83d"`:           `"\ufffd"`,
		`"\ude00\ud83d"`:     `"\ufffd\ufffd"`,
		`"\uD83Dx\n"`:        `"\ufffdx\n"`,
		`{"a":[1,"\u00e9"]}`: `{"a":[1,"\u00e9"]}`,
	} {
		if got := string(receipts.CleanJSON(json.RawMessage(in))); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}
