package prose

import (
	"strings"
	"testing"

	"github.com/gemworker/gem/client"
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
