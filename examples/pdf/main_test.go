package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klippa-app/go-pdfium"
	"github.com/klippa-app/go-pdfium/webassembly"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// pdf returns a document with a page for each text, a line for each line.
func pdf(pages ...string) []byte {
	var out bytes.Buffer
	var at []int
	add := func(format string, args ...any) {
		at = append(at, out.Len())
		fmt.Fprintf(&out, "%d 0 obj\n"+format+"\nendobj\n", append([]any{len(at)}, args...)...)
	}
	out.WriteString("%PDF-1.4\n")
	var kids []string
	for i := range pages {
		kids = append(kids, fmt.Sprintf("%d 0 R", 4+2*i))
	}
	add("<< /Type /Catalog /Pages 2 0 R >>")
	add("<< /Type /Pages /Kids [%s] /Count %d >>", strings.Join(kids, " "), len(pages))
	add("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
	for i, page := range pages {
		lines := "BT /F1 12 Tf 72 720 Td 14 TL"
		for line := range strings.Lines(page) {
			lines += fmt.Sprintf(" (%s) Tj T*", strings.TrimSpace(line))
		}
		lines += " ET"
		add("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>",
			5+2*i)
		add("<< /Length %d >>\nstream\n%s\nendstream", len(lines), lines)
	}
	table := out.Len()
	fmt.Fprintf(&out, "xref\n0 %d\n0000000000 65535 f \n", len(at)+1)
	for _, offset := range at {
		fmt.Fprintf(&out, "%010d 00000 n \n", offset)
	}
	fmt.Fprintf(&out, "trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n", len(at)+1, table)
	return out.Bytes()
}

var invoice = pdf("Invoice 17\nRoof tiles, 20 pieces", "Total: 1200 EUR")

// startPDFium starts PDFium once, because that takes seconds.
var startPDFium = sync.OnceValues(func() (pdfium.Pool, error) {
	return webassembly.Init(webassembly.Config{MinIdle: 1, MaxIdle: 1, MaxTotal: 1})
})

// connect returns a client of the server.
func connect(t *testing.T, private bool) *mcp.ClientSession {
	t.Helper()
	pool, err := startPDFium()
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := mcp.NewInMemoryTransports()
	if _, err := server(pool, private).Connect(t.Context(), theirs, nil); err != nil {
		t.Fatal(err)
	}
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// call returns the text, or the message of the failure.
func call(t *testing.T, client *mcp.ClientSession, in Document) (text Text, failure string) {
	t.Helper()
	got, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "text", Arguments: in})
	if err != nil {
		t.Fatal(err)
	}
	if got.IsError {
		return text, got.Content[0].(*mcp.TextContent).Text
	}
	encoded, err := json.Marshal(got.StructuredContent)
	if err == nil {
		err = json.Unmarshal(encoded, &text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text, ""
}

func TestTheTextOfADocument(t *testing.T) {
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(invoice) }))
	defer files.Close()
	client := connect(t, true)
	for _, in := range []Document{{URL: files.URL}, {Base64: base64.StdEncoding.EncodeToString(invoice)}} {
		text, failure := call(t, client, in)
		if failure != "" || text.Of != 2 || len(text.Pages) != 2 || text.Pages[1].Page != 2 ||
			strings.Join(strings.Fields(text.Pages[0].Text), " ") != "Invoice 17 Roof tiles, 20 pieces" ||
			!strings.Contains(text.Pages[1].Text, "Total: 1200 EUR") {
			t.Errorf("%+v %s", text, failure)
		}
	}
	text, failure := call(t, client, Document{URL: files.URL, First: 2})
	if failure != "" || len(text.Pages) != 1 || text.Pages[0].Page != 2 {
		t.Errorf("from page 2: %+v %s", text, failure)
	}
}

func TestWhatCannotBeReadIsRefused(t *testing.T) {
	files := httptest.NewServer(http.NotFoundHandler())
	defer files.Close()
	pages := slices.Repeat([]string{strings.Repeat(strings.Repeat("0123456789", 7)+"\n", 25)}, 700)
	private, public := connect(t, true), connect(t, false)
	for want, c := range map[string]struct {
		client *mcp.ClientSession
		in     Document
	}{
		"either url or base64": {public, Document{}},
		"illegal base64":       {public, Document{Base64: "%"}},
		"cannot be read":       {public, Document{Base64: base64.StdEncoding.EncodeToString([]byte("no PDF"))}},
		"not a public address": {public, Document{URL: files.URL}},
		"answered 404":         {private, Document{URL: files.URL}},
		"ask for the pages up": {public, Document{Base64: base64.StdEncoding.EncodeToString(pdf(pages...))}},
	} {
		if text, failure := call(t, c.client, c.in); !strings.Contains(failure, want) {
			t.Errorf("%s: %s %d", want, failure, len(text.Pages))
		}
	}
}

// pdftotext is poppler's.
func TestPopplerReadsTheSameWords(t *testing.T) {
	if os.Getenv("GEM_TEST_LONG") == "" {
		t.Skip("TestTheTextOfADocument is the short form: set GEM_TEST_LONG=1")
	}
	file := filepath.Join(t.TempDir(), "invoice.pdf")
	if err := os.WriteFile(file, invoice, 0o600); err != nil {
		t.Fatal(err)
	}
	theirs, err := exec.CommandContext(t.Context(), "pdftotext", file, "-").Output()
	if err != nil {
		t.Fatalf("pdftotext: %v: apt-get install poppler-utils", err)
	}
	text, failure := call(t, connect(t, false), Document{Base64: base64.StdEncoding.EncodeToString(invoice)})
	var ours []string
	for _, page := range text.Pages {
		ours = append(ours, strings.Fields(page.Text)...)
	}
	if want := strings.Fields(string(theirs)); failure != "" || strings.Join(ours, " ") != strings.Join(want, " ") {
		t.Errorf("%s\nours   %q\ntheirs %q", failure, ours, want)
	}
}
