// Command pdf is an MCP server on stdio with one tool: it returns the text of a PDF, page by page. GEM calls it as
// pdf.text, with receipts and retries, while a faulty document can end only this process: see examples/README.md.
package main

import (
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/klippa-app/go-pdfium"
	"github.com/klippa-app/go-pdfium/requests"
	"github.com/klippa-app/go-pdfium/webassembly"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	mostBytes = 32 << 20 // of a document
	mostText  = 1 << 20  // bytes of the result; GEM accepts no more
	patience  = 45 * time.Second
)

// Document is the input: a URL or the bytes in base64, and the pages to read.
type Document struct {
	URL    string `json:"url,omitempty" jsonschema:"where the PDF is, https or http; or give base64"`
	Base64 string `json:"base64,omitempty" jsonschema:"the PDF itself, in base64"`
	First  int    `json:"first,omitempty" jsonschema:"the first page to read; the default is 1"`
	Last   int    `json:"last,omitempty" jsonschema:"the last page to read; the default is the last page"`
}

// Text is the output.
type Text struct {
	Pages []Page `json:"pages"`
	Of    int    `json:"of" jsonschema:"the number of pages that the document has"`
}

// Page is the text of one page.
type Page struct {
	Page int    `json:"page"`
	Text string `json:"text"`
}

func main() {
	private := flag.Bool("private", false, "also fetch documents from this machine and from private networks")
	flag.Parse()
	pool, err := webassembly.Init(webassembly.Config{MinIdle: 1, MaxIdle: 1, MaxTotal: 1})
	if err != nil {
		log.Fatalf("start PDFium: %v", err)
	}
	if err := server(pool, *private).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

// server returns the MCP server.
func server(pool pdfium.Pool, private bool) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "pdf", Version: "1.0.0"}, nil)
	client := fetcher(private)
	mcp.AddTool(s, &mcp.Tool{Name: "text", Description: "Returns the text of a PDF, page by page.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(ctx context.Context, _ *mcp.CallToolRequest, in Document) (*mcp.CallToolResult, Text, error) {
			content, err := in.read(ctx, client)
			if err != nil {
				return nil, Text{}, err
			}
			text, err := extract(pool, content, in.First, in.Last)
			return nil, text, err
		})
	return s
}

// fetcher returns a client that connects only to public addresses, unless private is set. The URL comes from the caller
// of the tool, who must not reach what only this machine can reach.
func fetcher(private bool) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if at := to.Addr().Unmap(); !private && (!at.IsGlobalUnicast() || at.IsPrivate()) {
			return fmt.Errorf("%s is not a public address: start the server with -private to allow it", at)
		}
		return nil
	}}
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext}}
}

// read returns the bytes of the document.
func (d Document) read(ctx context.Context, client *http.Client) ([]byte, error) {
	if (d.URL == "") == (d.Base64 == "") {
		return nil, errors.New("give either url or base64")
	}
	if d.Base64 != "" {
		content, err := base64.StdEncoding.DecodeString(d.Base64)
		if err != nil {
			return nil, fmt.Errorf("base64: %w", err)
		}
		return content, nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.URL, nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server of the document answered %s", answer.Status)
	}
	content, err := io.ReadAll(io.LimitReader(answer.Body, mostBytes+1))
	if err == nil && len(content) > mostBytes {
		err = fmt.Errorf("the document has more than %d bytes", mostBytes)
	}
	return content, err
}

// extract returns the text of the pages from first to last.
func extract(pool pdfium.Pool, content []byte, first, last int) (Text, error) {
	text := Text{Pages: []Page{}}
	instance, err := pool.GetInstance(patience)
	if err != nil {
		return text, err
	}
	defer instance.Close()
	// Nothing but the end of the process stops a parser that loops. GEM starts a new one for the next attempt.
	stuck := time.AfterFunc(patience, func() { log.Fatalf("a document took more than %v", patience) })
	defer stuck.Stop()
	document, err := instance.OpenDocument(&requests.OpenDocument{File: &content})
	if err != nil {
		return text, fmt.Errorf("the PDF cannot be read: %w", err)
	}
	count, err := instance.FPDF_GetPageCount(&requests.FPDF_GetPageCount{Document: document.Document})
	if err != nil {
		return text, err
	}
	text.Of = count.PageCount
	if last == 0 {
		last = text.Of
	}
	size := 0
	for page := max(first, 1); page <= min(last, text.Of); page++ {
		found, err := instance.GetPageText(&requests.GetPageText{Page: requests.Page{
			ByIndex: &requests.PageByIndex{Document: document.Document, Index: page - 1}}})
		if err != nil {
			return text, fmt.Errorf("page %d: %w", page, err)
		}
		if size += len(found.Text) + 40; size > mostText {
			return text, fmt.Errorf("the text has more than %d bytes: ask for the pages up to %d, and then for the others",
				mostText, page-1)
		}
		text.Pages = append(text.Pages, Page{page, found.Text})
	}
	return text, nil
}
