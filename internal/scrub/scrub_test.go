package scrub_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/scrub"
)

const secret = `tok+/a"b<0123`

func TestASecretIsReplacedHoweverItIsEscaped(t *testing.T) {
	t.Parallel()
	once, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	twice, _ := json.Marshal(string(once))
	for name, text := range map[string]string{
		"plain":             secret,
		"a query":           "tok%2B%2Fa%22b%3C0123",
		"JSON":              strings.Trim(string(once), `"`),
		"JSON in JSON":      strings.TrimSuffix(strings.TrimPrefix(string(twice), `"\"`), `\""`),
		"as PHP":            `tok+\/a\"b<0123`,
		"each of them":      `\u0074\u006F\u006b\u002B\u002f\u0061\u0022\u0062\u003C\u0030\u0031\u0032\u0033`,
		"one":               `t\u006fk+/a"b<0123`,
		"after a backslash": `\\u0074ok+/a"b<0123`,
	} {
		if got := scrub.Replace("before "+text+" after", secret, "[X]"); got != "before [X] after" {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, text := range []string{"", "tok", `tok+\/a\"b<012`, `tok\u002B/a"b<012`} {
		if got := scrub.Replace(text, secret, "[X]"); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	if got := scrub.Replace("text", "", "[X]"); got != "text" {
		t.Errorf("without a secret: %q", got)
	}
}

func TestAReplacedSecretLeavesTheJSONAroundItValid(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`"\\/abcdefgh"`, `"\\\/abcdefgh"`, `"\\u002fabcdefgh"`, `"\n\u002Fabcdefgh\n"`} {
		if got := scrub.Replace(text, "/abcdefgh", "[X]"); !json.Valid([]byte(got)) || !strings.Contains(got, "[X]") {
			t.Errorf("%s became %s", text, got)
		}
	}
}

func TestTheBeginningOfATextEndsWithNoPartOfASecret(t *testing.T) {
	t.Parallel()
	replace := func(text string) string { return scrub.Replace(text, secret, "[X]") }
	for _, form := range []string{secret,
		`\u0074\u006F\u006b\u002B\u002f\u0061\u0022\u0062\u003C\u0030\u0031\u0032\u0033`} {
		for before := range 1000 {
			text := strings.Repeat(" ", before) + form + "."
			got := scrub.Beginning(text, 800, []string{secret}, replace)
			if left := strings.Trim(got, " ."); left != "" && left != "[X]" {
				t.Fatalf("%d characters before it: %q", before, left)
			}
		}
	}
	if got := scrub.Beginning("short", 800, []string{secret}, replace); got != "short" {
		t.Errorf("a short text: %q", got)
	}
}
