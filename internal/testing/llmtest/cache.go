package llmtest

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/gemworker/gem/internal/provider"
)

// piece is a part of a request that a provider can cache together with everything before it.
type piece struct {
	of     string
	tokens int64
}

// pieces returns the tools, the system text, and the parts of the messages, in the order in which a model reads them.
func pieces(asked *provider.Request) (all []piece) {
	add := func(of any, tokens int64) {
		encoded, _ := json.Marshal(of) // a difference that is lost would be one of invalid JSON
		all = append(all, piece{string(encoded), tokens})
	}
	for _, t := range asked.Tools {
		add(t, Tokens(t.Name)+Tokens(t.Description))
	}
	if asked.System != "" {
		add(asked.System, Tokens(asked.System))
	}
	for _, m := range asked.Messages {
		for _, p := range m.Content {
			add([]any{m.Role, p}, Tokens(p.Text)+Tokens(p.Name)+Tokens(string(p.Arguments))+Tokens(p.Content))
		}
	}
	return all
}

// lookback is how many pieces before a mark Anthropic compares with its cache.
const lookback = 20

// cache counts the input that is read from the cache and written to it. Unlike a provider, it caches short beginnings
// too, and forgets nothing.
func (s *Server) cache(r *Request, u *provider.Usage) {
	if len(r.CacheAt) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := pieces(&r.Asked)
	sums, tokens := make([][sha256.Size]byte, len(all)+1), make([]int64, len(all)+1)
	for i, p := range all {
		sums[i+1] = sha256.Sum256(append(sums[i][:], p.of...))
		tokens[i+1] = tokens[i] + p.tokens
	}
	last := 0
	for _, mark := range r.CacheAt {
		for i := mark; i > max(0, mark-lookback); i-- {
			if s.cached[sums[i]] {
				u.CacheRead = max(u.CacheRead, tokens[i])
			}
		}
		last = max(last, mark)
	}
	for _, mark := range r.CacheAt {
		s.cached[sums[mark]] = true
	}
	u.CacheWrite = max(0, tokens[last]-u.CacheRead)
}
