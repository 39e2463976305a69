package prose

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
	"github.com/gemworker/gem/receipts"
)

func TestAWaitForManyCallsSaysThatNotAllAreNamed(t *testing.T) {
	t.Parallel()
	for n, others := range map[int]bool{1: false, client.MaxChildren: true} {
		said := Explanation(&client.Explanation{WaitsFor: client.ForCalls, Children: make([]client.Call, n)})
		if strings.Contains(said, "and maybe others") != others {
			t.Errorf("%d calls: %s", n, said)
		}
	}
}

func TestAnUnknownToolOfGEMIsToBeIncluded(t *testing.T) {
	t.Parallel()
	for tool, want := range map[string]string{
		"llm.chat":  `has no tool llm.chat, which comes with GEM: add "llm.chat" to "include" in the registry`,
		"shop.chat": "has no tool shop.chat. Compare the name with `gem registry list`",
	} {
		r := &receipts.Receipt{ToolName: tool, Status: receipts.Failed, RegistryVersion: "4"}
		r.Result = []byte(`{"error": {"error_code": "unknown_tool", "message": "no", "details": null}}`)
		if said := explainFailed(&client.Explanation{Receipt: r}); !strings.Contains(said, want) {
			t.Errorf("%s: %s", tool, said)
		}
	}
}
