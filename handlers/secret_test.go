package handlers_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/gemworker/gem/handlers"
)

func TestSecretsShowThemselvesNowhere(t *testing.T) {
	t.Parallel()
	type config struct{ User, Password handlers.Secret }
	c := &config{User: "hunter2", Password: "hunter2"}
	s := c.Password
	if s.Reveal() != "hunter2" {
		t.Fatal("Reveal does not")
	}
	var out bytes.Buffer
	for _, verb := range strings.Split("v +v #v s q #q x X d t f e U c b o T", " ") {
		_, _ = fmt.Fprintf(&out, "%"+verb+" %"+verb+" %"+verb+"\n", s, &s, *c)
	}
	for _, v := range []any{s, &s, c, *c, map[string]handlers.Secret{"s": s}, []any{s}} {
		_ = json.NewEncoder(&out).Encode(v)
	}
	_ = xml.NewEncoder(&out).Encode(struct{ S handlers.Secret }{s})
	for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(h).Info("x", "s", s, "c", c)
	}
	if strings.Contains(out.String(), "hunter2") || strings.Contains(out.String(), fmt.Sprintf("%x", "hunter2")) {
		t.Errorf("a secret is shown:\n%s", out.String())
	}
	if !strings.Contains(out.String(), `"Password":"[set]"`) {
		t.Errorf("the output does not show that it is set:\n%s", out.String())
	}
	if got := fmt.Sprintf("%s|%v|%q", handlers.Secret(""), handlers.Secret(""), handlers.Secret("")); got != `||""` {
		t.Errorf("an empty secret shows as %s", got)
	}
}
