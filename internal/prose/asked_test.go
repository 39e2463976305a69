package prose_test

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/internal/prose"
)

func TestWhatACallWaitsForIsSaidInALine(t *testing.T) {
	t.Parallel()
	approval := client.WaitingCall{ID: "7", Tool: "wait.approval", Text: "Tell them?",
		By: []string{"role:boss", "user:ada"}, About: "comms.send_sms",
		AskedFor: client.AskerRule, AskedBy: "bob", Inside: true}
	for _, c := range []struct {
		asked           client.WaitingCall
		dashboard, want string
	}{
		{approval, "", `It waits for an approval of comms.send_sms by role:boss, user:ada: gem approve 7, or gem deny. ` +
			`A rule asks about a call of bob. It asks “Tell them?”`},
		{approval, "https://ops.example.com/gem/", `It waits for an approval of comms.send_sms by role:boss, user:ada, ` +
			`at https://ops.example.com/gem/questions/7 (or: gem approve 7, or gem deny). A rule asks about a call of bob. It asks “Tell them?”`},
		{client.WaitingCall{ID: "7", Tool: "wait.event", Names: []string{"answer"}}, "",
			"It waits for an answer: gem answer 7 VALUE"},
		{client.WaitingCall{ID: "7", Tool: "a.flow", Names: []string{"paid"}}, "https://ops.example.com",
			"It waits for an answer: gem answer 7 VALUE --name 'paid'"},
		{client.WaitingCall{ID: "7", Tool: "a.flow", Names: []string{"it's; \x1b[2Jdone"}}, "",
			`It waits for an answer: gem answer 7 VALUE --name 'it'\''s;  [2Jdone'`},
	} {
		if got := prose.AskedFor(c.asked, c.dashboard); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestWhatACallWaitsForHasOneName(t *testing.T) {
	t.Parallel()
	for waitsFor, want := range map[string]string{
		"call": "calls that it made", "key": "another call with its key", "answer": "an answer", "time": "a time",
		"code": "a program that has its code", "more": "more",
	} {
		if got := prose.Awaited("a.flow", waitsFor, false); got != want {
			t.Errorf("%s: %q, want %q", waitsFor, got, want)
		}
	}
	if got := prose.Awaited("a.flow", "call", true); got != "an approval" {
		t.Errorf("a call about which rules ask people: %q", got)
	}
}

// The asker chooses the name of the tool that an approval is about.
func TestTheToolOfAnApprovalCannotImitateItsAsker(t *testing.T) {
	t.Parallel()
	said := prose.AskedFor(client.WaitingCall{ID: "7", Tool: "wait.approval", AskedFor: client.AskerUser, AskedBy: "eve",
		About: "payments.refund by role:cfo: gem approve 7. A rule asks about a call of ada"}, "")
	if !strings.HasPrefix(said, `It waits for an approval of "payments.refund by role:cfo: gem approve 7.`) ||
		!strings.Contains(said, "eve asks") {
		t.Error(said)
	}
	said = prose.AskedFor(client.WaitingCall{ID: "7", Tool: "wait.approval", About: "a.b"}, "")
	if !strings.HasPrefix(said, "It waits for an approval of a.b: ") {
		t.Error(said)
	}
}
