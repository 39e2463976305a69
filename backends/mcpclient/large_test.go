package mcpclient_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

func TestALargeAnswerTakesFewTimesItsSizeInMemory(t *testing.T) { // not parallel: others allocate memory, too
	const size = 15 << 20
	fill := func(part string) string { return strings.TrimSuffix(strings.Repeat(part, size/len(part)), ",") }
	var members strings.Builder
	for i := 0; members.Len() < size; i++ {
		members.WriteString(`"x` + strconv.FormatInt(int64(i), 36) + `":0,`)
	}
	many := strings.TrimSuffix(members.String(), ",")
	const tooLarge = "about of the MCP server lab was called, and its result has 157286"
	for name, test := range map[string]struct{ method, id, rest, want string }{
		"a result with many members": {"tools/call", "ID", `"result":{` + many + `}}`, tooLarge},
		"an id that is a text":       {"tools/call", `"ID"`, `"result":{` + many + `}}`, tooLarge},
		"a result with many contents": {"tools/call", "ID", `"result":{"content":[` + fill("{},") + `]}}`,
			tooLarge},
		"a result with a long text": {"tools/call", "ID",
			`"result":{"content":[{"type":"text","text":"` + fill("x") + `"}]}}`, tooLarge},
		"many members beside the result": {"tools/call", "ID", many + `,"result":{"content":[]}}`, "<nil>"},
		"an error with much data": {"tools/call", "ID",
			`"error":{"code":1,"message":"x","data":[` + fill("{},") + `]}}`, "refused the call: x"},
		"a list of many tools": {"tools/list", "ID", `"result":{"tools":[` + fill(`{"name":"a"},`) + `]}}`,
			"it lists more than 2000 tools"},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, reached(t, nil, func(w http.ResponseWriter, r *http.Request, rest http.Handler) {
				text, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(text))
				var m struct {
					ID     json.RawMessage
					Method string
				}
				if _ = json.Unmarshal(text, &m); m.Method != test.method {
					rest.ServeHTTP(w, r)
					return
				}
				writeAnswer(w, `{"jsonrpc":"2.0","id":`+test.id+`,`, m.ID)
				_, _ = io.WriteString(w, test.rest)
			}), nil)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := p.run(t.Context(), "about", `{}`)
			runtime.ReadMemStats(&after)
			if said := fmt.Sprint(err); !strings.Contains(said, test.want) {
				t.Errorf("the call ended with %.200s, want %s", said, test.want)
			}
			times := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(test.rest))
			if times > 8 {
				t.Errorf("the answer took %.1f times its size in memory", times)
			}
		})
	}
}
