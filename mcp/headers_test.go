package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// No text of a client can add a header: neither its token and the claims in it, nor its headers, paths and messages.
// The recorder keeps headers as the handlers set them; a server would repair them.
func TestTextOfAClientNeverBecomesAHeader(t *testing.T) {
	t.Parallel()
	const hostile = "x\r\nSet-Cookie: session=stolen\r\n\r\n<html>\x1b[2J\u202e\u00fc\", error=\""
	d, err := New(Options{Registry: parsed(t), Pool: func(context.Context) (*pgxpool.Pool, error) {
		return nil, errors.New("Postgres is away")
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const secret = "a-secret-of-at-least-32-characters!!"
	s, err := d.newHTTPServer(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8471},
		HTTPConfig{Auth: "jwt", Issuer: "https://issuer.example", Audience: "gem", Secret: secret,
			Resource: "https://tools.example.com/mcp", Scopes: "on"})
	if err != nil {
		t.Fatal(err)
	}
	h := s.routes()
	name, _ := json.Marshal(hostile)
	bodies := []string{
		`{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {` + string(name) + `: ` + string(name) +
			`}}}`,
		`{"jsonrpc": "2.0", "id": ` + string(name) + `, "method": "tools/call", "params": {"name": ` + string(name) +
			`, "arguments": {` + string(name) + `: 1}}}`,
		`{"jsonrpc": "2.0", "id": 1, "method": ` + string(name) + `, "params": {}}`,
		`{"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": ` + string(name) + `}}`,
		`{` + hostile,
	}
	tokens := []string{"", hostile, "x\", error=\"y"}
	for _, claims := range []jwt.MapClaims{
		{"iss": "https://issuer.example", "aud": "gem", "sub": "ada", "exp": 4102444800, "scope": hostile, hostile: hostile},
		{"iss": "https://issuer.example", "aud": "gem", "sub": hostile, "exp": 4102444800},
		{"iss": hostile, "aud": "gem", "sub": "ada", "exp": 4102444800},
		{"iss": "https://issuer.example", "aud": "gem", "sub": "ada", "exp": 4102444800, "role": hostile},
		{"iss": "https://issuer.example", "aud": hostile, "sub": "ada", "exp": 4102444800},
		{"iss": "https://issuer.example", "aud": "gem", "sub": "ada", "exp": hostile},
		{"iss": "https://issuer.example", "aud": "gem", "sub": "ada", "exp": 4102444800, "role": "anon", "email": hostile},
	} {
		token := jwt.NewWithClaims(jwt.SigningMethodHS256, claims)
		token.Header["kid"], token.Header["x"] = hostile, hostile
		signed, err := token.SignedString([]byte(secret))
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, signed)
	}
	printable := regexp.MustCompile(`^[ -~]{0,1000}$`)
	statuses := map[int]bool{}
	for _, token := range tokens {
		for _, body := range bodies {
			for _, other := range []string{"Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method", "Origin", "Accept",
				"Last-Event-Id", "Traceparent", "Host", "Content-Type"} {
				r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
				r.Host = "tools.example.com"
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Accept", "application/json, text/event-stream")
				r.Header.Set("Authorization", "Bearer "+token)
				if r.Header.Set(other, hostile); other == "Host" {
					r.Host = hostile
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				statuses[w.Code] = true
				for name, values := range w.Header() {
					for _, value := range values {
						if !printable.MatchString(name+value) || strings.Contains(name+value, "stolen") {
							t.Errorf("%s, token %.40q, body %.60q: %s: %.300q", other, token, body, name, value)
						}
					}
				}
			}
		}
	}
	for _, status := range []int{200, 400, 401, 403} {
		if !statuses[status] {
			t.Errorf("no response had the status %d: %v", status, statuses)
		}
	}
}
