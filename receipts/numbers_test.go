package receipts_test

import (
	"encoding/json"
	"testing"

	"github.com/gemworker/gem/receipts"
)

func TestTheNotationOfANumberChangesNoKey(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		`11`: "t:f=11", `11.0`: "t:f=11", `11.000`: "t:f=11", `10`: "t:f=10", `0.0`: "t:f=0", `-0.00`: "t:f=0", `0.10`: "t:f=0.1",
		`-2.50`: "t:f=-2.5", `[1.0, {"a": "1.0"}]`: `t:f=[1, {"a": "1.0"}]`, `"1.0"`: `t:f="1.0"`, `{"a.0": 1.50, "b": "\".0"}`: `t:f={"a.0": 1.5, "b": "\".0"}`,
	} {
		if got, _ := receipts.Key("t", "f", json.RawMessage(given)); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
}

func TestAWholeNumberWithAFractionOfZerosIsAnInteger(t *testing.T) {
	t.Parallel()
	type value struct {
		N    int
		List []int64
		Text string
		Raw  json.RawMessage
	}
	var got value
	if err := receipts.Decode(json.RawMessage(`{"n": 1.0, "list": [2, 30.00], "text": "1.0", "raw": 1.50}`), &got); err != nil ||
		got.N != 1 || got.List[0] != 2 || got.List[1] != 30 || got.Text != "1.0" {
		t.Errorf("%+v, %v", got, err)
	}
	if err := receipts.Decode(json.RawMessage(`{"raw": 1.50}`), &got); err != nil || string(got.Raw) != "1.50" {
		t.Errorf("a document that fits is changed: %s, %v", got.Raw, err)
	}
	for _, bad := range []string{`{"n": 1.5}`, `{"n": "1.0"}`, `{"text": 1.0}`} {
		if err := receipts.Decode(json.RawMessage(bad), &got); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
