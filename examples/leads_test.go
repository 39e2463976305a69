package examples_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gemworker/gem/internal/testing/supabase"
)

// The page of examples/leads in a real browser, with the client of clients/js and the real supabase-js, against a real
// PostgREST.
func TestAPageAddsLeads(t *testing.T) {
	t.Parallel()
	p := start(t)
	site := httptest.NewServer(repository(t))
	t.Cleanup(site.Close)
	c := supabase.Browser(t)
	add := func(phone string) string {
		return strings.Trim(string(c.Run("", fmt.Sprintf(`
			await page.$eval('#phone', (field, value) => { field.value = value }, '%s')
			await page.click('#lead button')
			await page.waitForFunction(() => /^(Added|This phone)/.test(document.querySelector('#said').textContent) &&
				document.querySelector('#leads li'), {timeout: 60_000}).catch(async () => {
				throw [await page.$eval('#said', said => said.textContent), JSON.stringify(seen)] })
			const said = await page.$eval('#said', said => said.textContent)
			await page.$eval('#said', said => { said.textContent = '' })
			return said.split(' ').slice(0, 2).join(' ')`, phone))), `"`)
	}

	c.Run("", `await page.goto('`+site.URL+`/examples/leads/')
		for (const [field, value] of Object.entries({url: '`+p.URL+`', key: '`+supabase.APIKey+`', token: '`+p.User("ada")+`', suburb: 'Carlton'}))
			await page.$eval('#' + field, (field, value) => { field.value = value }, value)
		await page.type('#name', '<img src=x onerror=alert(1)>Ada')`)
	if got := add("+61 400 000 001"); got != "Added as" {
		t.Errorf("the first: %s", got)
	}
	if got := add("+61 400 000 001"); got != "This phone" {
		t.Errorf("the same phone again: %s", got)
	}
	if got := string(
		c.Run("", `return [await page.$$eval('#leads li', all => all.map(one => one.textContent)), await page.$$eval('img', all => all.length)]`)); got !=
		`[["<img src=x onerror=alert(1)>Ada, Carlton"],0]` {
		t.Errorf("the page lists %s", got)
	}
	if got := string(
		c.Run("", `return seen.errors.filter(text => !text.includes('favicon') && !text.includes('404'))`)); got != `[]` {
		t.Errorf("the page's errors: %s", got)
	}
	if n := p.Value(
		"select count(*) || ' ' || min(created_by) from core_tool_calls where tool_name = 'leads.create'"); n != "2 ada" {
		t.Errorf("calls to leads.create and their user: %s", n)
	}
}

// repository serves the root of the repository like a web server, with npm's supabase-js in place of the CDN's.
func repository(t *testing.T) http.Handler {
	t.Helper()
	const cdn = "https://cdn.jsdelivr.net/npm/@supabase/supabase-js@2.108.0"
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("leads/index.html")
	if err != nil || strings.Count(string(page), strconv.Quote(cdn)) != 1 {
		t.Fatalf("the page does not load supabase-js from %s: %v", cdn, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(top)))
	mux.HandleFunc("/examples/leads/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(strings.Replace(string(page), cdn,
			"/internal/testing/supabase/node_modules/@supabase/supabase-js/dist/umd/supabase.js", 1)))
	})
	return mux
}
