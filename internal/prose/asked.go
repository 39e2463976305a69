package prose

import (
	"fmt"
	"strings"

	"github.com/gemworker/gem/client"
)

// Awaited names what a waiting call waits for, by its waits_for. approval means that rules ask people about it: the questions are calls.
func Awaited(waitsFor string, approval bool) string {
	switch {
	case waitsFor == "call" && approval:
		return "an approval"
	case waitsFor == "call":
		return "calls that it made"
	case waitsFor == "key":
		return "another call with its key"
	case waitsFor == "answer":
		return "an answer"
	case waitsFor == "time":
		return "a time"
	case waitsFor == "code":
		return "a program"
	}
	return waitsFor
}

// AskedFor says in a line what a call waits for, who may give it, and where or how. dashboard is the address of the pages; empty for none.
func AskedFor(q client.Asked, dashboard string) string {
	by := ""
	if len(q.By) > 0 {
		by = " by " + Cut(Printable(strings.Join(q.By, ", ")), 200)
	}
	said, how, asks := "It waits for an answer"+by, "gem answer "+q.ID+" VALUE", ""
	switch {
	case q.Tool == "wait.approval":
		said, how = fmt.Sprintf("It waits for an approval of %s%s", Cut(Printable(q.About), 200), by), "gem approve "+q.ID+", or gem deny"
		if q.Text != "" {
			asks = fmt.Sprintf(". It asks %q", Cut(Printable(q.Text), 300))
		}
	case !IsQuestion(q.Tool):
		if len(q.Names) > 0 && q.Names[0] != "answer" {
			how += " --name " + Argument(q.Names[0])
		}
		return said + ": " + how
	case q.Text != "":
		said += fmt.Sprintf(" to %q", Cut(Printable(q.Text), 300))
	}
	if link := QuestionLink(dashboard, q.ID); link != "" {
		return said + ", at " + link + " (or: " + how + ")" + asks
	}
	return said + ": " + how + asks
}

// QuestionLink is the page where people answer a question; empty without a dashboard that has an address.
func QuestionLink(dashboard, id string) string {
	if !strings.HasPrefix(dashboard, "http") {
		return ""
	}
	return strings.TrimRight(dashboard, "/") + "/questions/" + id
}
