// Package scrub replaces secrets in text that came from elsewhere and may repeat them.
package scrub

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
)

// Replace returns text with other in place of each occurrence of secret, including those escaped as in a URL and those
// with any characters escaped as in JSON, once or more often. An empty secret changes nothing.
func Replace(text, secret, other string) string {
	if secret == "" || len(text) < len(secret) {
		return text
	}
	if strings.Contains(text, `\`) {
		text = inJSON(secret).ReplaceAllLiteralString(text, other)
	}
	text = strings.ReplaceAll(text, secret, other)
	for _, escaped := range []string{url.QueryEscape(secret), url.PathEscape(secret)} {
		if escaped != secret {
			text = strings.ReplaceAll(text, escaped, other)
		}
	}
	return text
}

// Find returns the bounds of each occurrence of secret in text, in the forms that [Replace] replaces.
func Find(text, secret string) [][]int {
	if secret == "" {
		return nil
	}
	return regexp.MustCompile(inJSON(secret).String()+"|"+regexp.QuoteMeta(url.QueryEscape(secret))+"|"+
		regexp.QuoteMeta(url.PathEscape(secret))).FindAllStringIndex(text, -1)
}

// Beginning returns at most the first bytes of a text with all secrets replaced by replace. Where it cuts the text, it
// leaves out the end, which may be a part of one of the secrets.
func Beginning(text string, most int, secrets []string, replace func(text string) string) string {
	if len(text) <= most {
		return replace(text)
	}
	longest := 0
	for _, secret := range secrets {
		longest = max(longest, len(secret))
	}
	text = replace(text[:most])
	return text[:max(0, len(text)-escapedLength*longest)]
}

// escapedLength is how many bytes a character of a secret has at most where it is escaped twice.
const escapedLength = len(`\\u002f`)

// expressions are those of inJSON: a program has few secrets, and an answer may have thousands of parts.
var expressions sync.Map

// inJSON finds a secret with any characters escaped as in JSON. It takes all backslashes before a character, because
// one that is left would escape what replaces the secret.
func inJSON(secret string) *regexp.Regexp {
	if known, ok := expressions.Load(secret); ok {
		return known.(*regexp.Regexp)
	}
	var b strings.Builder
	for _, c := range secret {
		plain := regexp.QuoteMeta(string(c))
		if strings.ContainsRune(`"\/`, c) {
			plain = `\\*` + plain
		}
		fmt.Fprintf(&b, `(?:%s|\\+u(?i:%04x))`, plain, c)
	}
	expression := regexp.MustCompile(b.String())
	expressions.Store(secret, expression)
	return expression
}
