package mcp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/gemworker/gem/internal/plainfile"
	"go.uber.org/zap"
)

// tokenFile holds the hashes of the valid tokens. It is read again when it changes, so removing a line withdraws a
// token.
type tokenFile struct {
	path string
	log  *zap.Logger

	mu   sync.Mutex
	info os.FileInfo // of the file when it was read; nil if that failed
	all  []token
}

// token is a line of the file.
type token struct {
	sum     [sha256.Size]byte
	subject string
	scopes  []string
}

// openTokens reads the file. It returns an error for each fault, so that a server with faults does not start.
func openTokens(path string, log *zap.Logger) (*tokenFile, error) {
	f := &tokenFile{path: path, log: log}
	text, info, err := f.read()
	if err != nil {
		return nil, err
	}
	all, faults := parseTokens(text)
	if len(faults) > 0 {
		return nil, fmt.Errorf("GEM_MCP_TOKENS: %s:\n%s", path, strings.Join(faults, "\n"))
	}
	f.all, f.info = all, info
	return f, nil
}

const maxTokens = 1 << 20 // bytes of the file

func (f *tokenFile) read() ([]byte, os.FileInfo, error) {
	info, err := os.Stat(f.path)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("GEM_MCP_TOKENS cannot be read: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxTokens:
		return nil, nil, fmt.Errorf("GEM_MCP_TOKENS: %s must be a file of at most 1 MiB", f.path)
	}
	text, err := plainfile.Read(f.path)
	if err != nil {
		return nil, nil, fmt.Errorf("GEM_MCP_TOKENS cannot be read: %w", err)
	}
	return text, info, nil
}

// parseTokens reads lines of the form "sha256 subject scope…". Empty lines, and lines that begin with #, are
// comments. A fault names its line but not the contents, which might be a token.
func parseTokens(text []byte) (all []token, faults []string) {
	seen := map[[sha256.Size]byte]bool{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxTokens+1)
	for number := 1; lines.Scan(); number++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		var t token
		sum, err := hex.DecodeString(fields[0])
		fault := ""
		switch {
		case err != nil || len(sum) != sha256.Size:
			fault = "does not begin with a SHA-256 of 64 hexadecimal digits; gem mcp token makes such a line"
		case len(fields) == 1:
			fault = "names no subject after the SHA-256"
		case subjectProblem(fields[1]) != "":
			fault = "names a subject that " + subjectProblem(fields[1])
		case seen[[sha256.Size]byte(sum)]:
			fault = "has the same token as an earlier line"
		}
		if fault != "" {
			faults = append(faults, fmt.Sprintf("line %d %s", number, fault))
			continue
		}
		t.sum, t.subject, t.scopes = [sha256.Size]byte(sum), fields[1], fields[2:]
		seen[t.sum] = true
		all = append(all, t)
	}
	return all, faults
}

// current returns the tokens of the current file. It skips a faulty line, and returns none if the file cannot be
// read: a withdrawn token must not stay valid through a mistake.
func (f *tokenFile) current() []token {
	info, err := os.Stat(f.path)
	f.mu.Lock()
	defer f.mu.Unlock()
	same := err == nil && f.info != nil && os.SameFile(info, f.info) && info.ModTime().Equal(f.info.ModTime()) &&
		info.Size() == f.info.Size()
	if same || err != nil && f.info == nil {
		return f.all
	}
	text, info, err := f.read()
	if err != nil {
		f.all, f.info = nil, nil
		f.log.Error("no token is valid: " + err.Error())
		return nil
	}
	all, faults := parseTokens(text)
	f.all, f.info = all, info
	f.log.Info("the file of tokens was read again", zap.Int("tokens", len(all)))
	for _, fault := range faults {
		f.log.Error("a line of GEM_MCP_TOKENS is ignored: " + fault)
	}
	return all
}

func (f *tokenFile) verify(_ context.Context, presented string) (caller, error) {
	sum, found := sha256.Sum256([]byte(presented)), -1
	all := f.current()
	for i := range all { // all of them, so that the time reveals nothing
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], all[i].sum[:]), i, found)
	}
	if found < 0 {
		return caller{}, refuse("the token is unknown, or was withdrawn")
	}
	return caller{subject: all[found].subject, scopes: all[found].scopes}, nil
}

// NewToken returns a new token, and its line for the file of GEM_MCP_TOKENS. The token itself is stored nowhere.
func NewToken(subject string, scopes ...string) (token, line string, err error) {
	if problem := subjectProblem(subject); problem != "" || len(strings.Fields(subject)) != 1 ||
		strings.HasPrefix(subject, "#") {
		return "", "", fmt.Errorf("%q cannot be a subject: it must be 1 to 255 printable characters without white space",
			subject)
	}
	for _, scope := range scopes {
		if len(strings.Fields(scope)) != 1 {
			return "", "", fmt.Errorf("%q cannot be a scope: it is a permission of the registry, such as read:db", scope)
		}
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	token = "gem_" + base64.RawURLEncoding.EncodeToString(secret)
	sum := sha256.Sum256([]byte(token))
	return token, strings.Join(append([]string{hex.EncodeToString(sum[:]), subject}, scopes...), " "), nil
}
