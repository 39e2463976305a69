// Package backends reads domains.json, which names the domains whose tools live behind HTTP or in an MCP server. The
// packages below it run tools there: webhook, mcpclient and, for functions in the database, sqlfunc.
package backends

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/schema"
)

// Domains is a valid domains.json. It never changes.
type Domains struct {
	// Version names the contents: other contents need another version. See [CheckUpgrade].
	Version string
	// Services and Servers are the domains behind HTTP and in MCP servers, by name. No name is in both.
	Services map[string]Service
	Servers  map[string]Server

	doc  map[string]any
	json []byte
}

// Service is a domain behind HTTP. It has either URL and SecretEnv, or URLEnv.
type Service struct {
	// URL is where its tools are, without a slash at the end: a method's name follows it.
	URL string
	// SecretEnv names the variable with the secret that signs its requests.
	SecretEnv string
	// URLEnv names the variable with the URL to which each of its tools posts its input, unsigned. The URL may be a
	// secret.
	URLEnv string
	// HeaderEnv names the variables of further headers, by the header's name.
	HeaderEnv map[string]string
	// Durable lists the methods whose handlers are durable: see docs/sdk.md.
	Durable []string
	// SQL gives these methods tokens with which they write steps in their own transactions.
	SQL bool
}

// Server is a domain in an MCP server: at a URL, or a program that is started.
type Server struct {
	// URL is where the server speaks Streamable HTTP; empty for a program.
	URL string
	// HeaderEnv names the variables of headers for the URL, by the header's name.
	HeaderEnv map[string]string
	// Command is the program that speaks MCP over its standard input and output, and Args its arguments.
	Command string
	Args    []string
	// Env names the variables that the program gets.
	Env []string
}

// File is the name of the file in the working directory.
const File = "domains.json"

// Find reads what chosen (GEM_DOMAINS) names or holds, the file in the working directory, or builtIn, in this order.
// from names the source. If there is none, Find returns nil and no error.
func Find(chosen string, builtIn []byte) (d *Domains, from string, err error) {
	if chosen = strings.TrimSpace(chosen); chosen == "" {
		if _, err := os.Stat(File); !errors.Is(err, fs.ErrNotExist) {
			chosen = File
		}
	}
	contents, from := builtIn, "built in"
	switch {
	case strings.HasPrefix(chosen, "{"):
		contents, from = []byte(chosen), "the JSON of GEM_DOMAINS"
	case chosen != "":
		d, err = ReadFile(chosen)
		return d, chosen, err
	case len(contents) == 0:
		return nil, "none", nil
	}
	if d, err = Parse(contents); err != nil {
		err = fmt.Errorf("the domains (%s) are refused:\n%w", from, err)
	}
	return d, from, err
}

// ReadFile reads and parses a file. Its errors name it and the remedy.
func ReadFile(path string) (*Domains, error) {
	return plainfile.Parsed(path, "domains", "GEM_DOMAINS", Parse)
}

// Names returns the names of all domains, sorted. Those of nil are none.
func (d *Domains) Names() []string {
	if d == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(entries(d.doc)))
}

// Variables returns the names of all variables that the file names, sorted.
func (d *Domains) Variables() []string {
	var all []string
	for _, s := range d.Services {
		all = append(slices.AppendSeq(all, maps.Values(s.HeaderEnv)), cmp.Or(s.URLEnv, s.SecretEnv))
	}
	for _, s := range d.Servers {
		all = append(slices.AppendSeq(all, maps.Values(s.HeaderEnv)), s.Env...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// SHA256 returns the hash of [Domains.JSON] in hexadecimal digits. Formatting the file does not change it; any other
// change does.
func (d *Domains) SHA256() string { return fmt.Sprintf("%x", sha256.Sum256(d.json)) }

// JSON returns the file in canonical form: keys sorted, no white space, and without the $schema at the top. It parses
// to the same domains.
func (d *Domains) JSON() []byte { return slices.Clone(d.json) }

// CheckUpgrade returns an error if new has the version of old and other contents: a version must belong to one file
// only.
func CheckUpgrade(old, new *Domains) error { return schema.CheckUpgrade(old.file(), new.file()) }

func (d *Domains) file() schema.File {
	return schema.File{Noun: "the domains", Version: d.Version, Doc: d.doc, Entries: entries(d.doc), Others: d.Names()}
}
