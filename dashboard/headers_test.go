package dashboard_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/gemworker/gem/dashboard"
)

// No text of a request or a call can end a header. The recorder keeps headers as the handlers set them; a server would
// repair them.
func TestTextOfOthersNeverEndsAHeaderOfAPage(t *testing.T) {
	t.Parallel()
	const bad = "x\r\nSet-Cookie: session=stolen\r\n\r\n<html>\x1b[2J\u202e\u00fc\"; filename=\"evil.html"
	server, owner := pages(t, dashboard.User{Name: "ada", Operator: true})
	var id string
	if err := owner.QueryRow(t.Context(), `insert into core_tool_calls (tool_name, input, session_id, created_by,
		idempotency_key)
		values ($1::text, jsonb_build_object($1::text, $1::text), $1::text, $1::text, $1::text) returning id::text`,
		bad).Scan(&id); err != nil {
		t.Fatal(err)
	}
	escaped := url.QueryEscape(bad)
	inPath := url.PathEscape(bad)
	printable := regexp.MustCompile(`^[ -~]*$`)
	statuses := map[int]bool{}
	for _, r := range []struct{ method, target, body string }{
		{"GET", "/", ""}, {"GET", "/calls?tool=" + escaped + "&session=" + escaped + "&caller=" + escaped + "&before=" +
			escaped + "&state=" + escaped, ""},
		{"GET", "/calls?tool=" + escaped, ""}, {"GET", "/calls/" + id, ""}, {"GET", "/calls/" + id + "/input", ""},
		{"GET", "/calls/" + id + "/" + inPath, ""},
		{"GET", "/calls/" + inPath, ""}, {"GET", "/calls/" + inPath + "/input", ""},
		{"GET", "/calls/" + id + "/result/" + inPath, ""},
		{"GET", "/questions/" + inPath, ""}, {"GET", "/questions/" + inPath + "/arguments", ""},
		{"GET", "/questions/" + id + "/arguments", ""},
		{"GET", "/sessions/" + inPath, ""}, {"GET", "/sessions?id=" + escaped, ""}, {"GET", "/tools/" + inPath, ""},
		{"GET", "/static/" + inPath, ""},
		{"GET", "//" + inPath, ""}, {"GET", "/calls//" + inPath + "?x=" + escaped, ""}, {"GET", "/../" + inPath, ""},
		{"GET", "/" + inPath + "?" + escaped, ""},
		{"GET", "/live?watch=" + escaped, ""}, {"GET", "/login?to=" + escaped, ""},
		{"POST", "/look", "back=" + escaped + "&look=" + escaped},
		{"POST", "/look", "back=/%0d%0aSet-Cookie:%20stolen"}, {"POST", "/look", "back=//evil.example/" + escaped},
		{"POST", "/logout", "x=" + escaped},
		{"POST", "/calls/" + id + "/cancel", "form=" + escaped + "&reason=" + escaped},
		{"POST", "/calls/" + id + "/again", "form=" + escaped + "&confirm=" + escaped},
		{"POST", "/calls/" + inPath + "/cancel", "form=" + escaped}, {"POST", "/questions/" + inPath, "form=" + escaped},
	} {
		for _, header := range []string{"", "Host", "Origin", "Accept-Encoding", "If-None-Match", "Cookie", "Referer",
			"Sec-Fetch-Site", "X-Forwarded-Host"} {
			q := httptest.NewRequest(r.method, "http://127.0.0.1:8470/", strings.NewReader(r.body))
			u, err := url.Parse("http://127.0.0.1:8470" + r.target)
			if err != nil {
				t.Fatal(err)
			}
			q.URL.Path, q.URL.RawPath, q.URL.RawQuery, q.RequestURI = u.Path, u.RawPath, u.RawQuery, r.target
			q.Host, q.RemoteAddr = "127.0.0.1:8470", "127.0.0.1:1234"
			if r.method == http.MethodPost {
				q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			if q.Header.Set(header, bad); header == "Host" {
				q.Host = bad
			}
			w := httptest.NewRecorder()
			server.Config.Handler.ServeHTTP(w, q)
			statuses[w.Code] = true
			for name, values := range w.Header() {
				for _, value := range values {
					if !printable.MatchString(name + value) {
						t.Errorf("%s %.80s with %s: %s: %.300q", r.method, r.target, header, name, value)
					}
					if disposition := name == "Content-Disposition"; disposition &&
						!regexp.MustCompile(`^attachment; filename="[0-9a-f-]{36}-[a-z0-9-]+\.json\.txt"$`).MatchString(value) {
						t.Errorf("%s %.80s: %s: %q", r.method, r.target, name, value)
					}
					if name == "Location" && !strings.HasPrefix(value, "/") || name == "Location" && strings.HasPrefix(value, "//") {
						t.Errorf("%s %.80s leads to %q", r.method, r.target, value)
					}
				}
			}
		}
	}
	for _, status := range []int{200, 303, 403, 404} {
		if !statuses[status] {
			t.Errorf("no response had the status %d: %v", status, statuses)
		}
	}
}
