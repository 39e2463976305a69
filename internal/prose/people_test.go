package prose

import "testing"

func TestThePeopleWhoMayAnswerAreNamedInWords(t *testing.T) {
	t.Parallel()
	for want, by := range map[string][]string{
		"someone with the role manager":                     {"role:manager"},
		"the caller or someone with the role boss or clerk": {"role:boss", "owner", "role:clerk"},
		"the user ada or a server":                          {"user:ada", "service"},
		"something else":                                    {"something else"},
		"the user a b":                                      {"user:a\nb"},
		"the user role:x":                                   {"user:role:x"},
		"someone with the role a:b":                         {"role:a:b"},
		"role:":                                             {"role:"},
		"":                                                  nil,
	} {
		if got := Answerers(by); got != want {
			t.Errorf("%q: got %q, want %q", by, got, want)
		}
	}
}

func TestAWaitingCallNamesWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		tool, waitsFor string
		approval       bool
		want           string
	}{
		{"shop.refund", "call", true, "waiting for an approval"},
		{"wait.approval", "answer", false, "waiting for an approval"},
		{"wait.event", "answer", false, "waiting for an event"},
		{"wait.answer", "answer", false, "waiting for an answer"},
		{"agent.run", "call", false, "waiting for calls that it made"},
		{"a.b", "key", false, "waiting for another call with its key"},
		{"a.b", "time", false, "sleeping"},
		{"a.b", "code", false, "waiting for a program that has its code"},
		{"a.b", "more", false, "waiting for more"},
	} {
		if got := Waiting(test.tool, test.waitsFor, test.approval); got != test.want {
			t.Errorf("%+v: got %q", test, got)
		}
	}
}
