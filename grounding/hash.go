package grounding

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/gemworker/gem/internal/schema"
)

// Request is the question to a model about one shard. Its JSON is the input of the tool that asks the model. Its hash
// identifies it, so that equal requests share one answer.
type Request struct {
	// Hash is the result of [Request.Sum].
	Hash string `json:"request_hash"`
	// Scope names the caller that may share the answer. If it is empty, all callers may share it.
	Scope   string  `json:"scope"`
	Program Program `json:"program"`
	// Route selects the model. The hash counts Model instead of Route.
	Route string `json:"route,omitempty"`
	// Model lists the model names of the route's targets in order, separated by commas.
	Model string `json:"model"`
	// Params is a JSON object with the parameters of the model's request. It is {} if there are none.
	Params json.RawMessage `json:"params"`
	Before string          `json:"before"`
	Text   string          `json:"text"` // the body
	After  string          `json:"after"`
	// Prompt is the number of the wording. See [PromptNumber].
	Prompt int `json:"prompt"`
}

// hashInput holds the fields that the hash of a request counts. Its canonical form is its JSON with sorted keys.
type hashInput struct {
	After   string          `json:"after"`
	Before  string          `json:"before"`
	Model   string          `json:"model"`
	Params  json.RawMessage `json:"params"`
	Program string          `json:"program"`
	Prompt  int             `json:"prompt"`
	Scope   string          `json:"scope"`
	Text    string          `json:"text"`
	Version int             `json:"v"`
}

// hashVersion is the number of the hash formula.
const hashVersion = 1

// Request returns the request about a window, with its hash. params is a JSON object. nil means no parameters.
func (c *CompiledProgram) Request(w Window, scope, route, model string, params json.RawMessage) Request {
	if params == nil {
		params = json.RawMessage("{}")
	}
	r := Request{
		Scope: scope, Program: c.program, Route: route, Model: model, Params: params,
		Before: w.Before, Text: w.Body, After: w.After, Prompt: PromptNumber,
	}
	r.Hash = r.sum(c.hash)
	return r
}

// Sum returns the hash that the request must have: the SHA-256 of its canonical form, in hexadecimal. It returns an
// empty string if the program or the parameters are not JSON.
func (r *Request) Sum() string {
	program, err := r.Program.hash()
	if err != nil {
		return ""
	}
	return r.sum(program)
}

func (r *Request) sum(program string) string {
	params, err := canonical(r.Params)
	if err != nil {
		return ""
	}
	return sum(schema.Canonical(hashInput{r.After, r.Before, r.Model, params, program, r.Prompt, r.Scope, r.Text,
		hashVersion}))
}

// Window returns the window that the request shows to the model.
func (r *Request) Window() Window { return Window{r.Before, r.Text, r.After} }

// hash returns the SHA-256 of the program's canonical form, in hexadecimal. It returns an error if the program is not
// JSON.
func (p *Program) hash() (string, error) {
	text, err := p.canonical()
	return sum(text), err
}

// canonical returns the same JSON for equal programs. The JSON always has the member examples, even if the program has
// none. canonical returns an error if the program is not JSON.
func (p *Program) canonical() ([]byte, error) {
	text, err := json.Marshal(struct {
		Classes      []Class   `json:"classes"`
		Examples     []Example `json:"examples"`
		Instructions string    `json:"instructions"`
	}{p.Classes, append([]Example{}, p.Examples...), p.Instructions})
	if err != nil {
		return nil, err
	}
	return canonical(text)
}

// canonical returns the canonical form of a JSON text. It returns an error if the text is not JSON.
func canonical(text []byte) ([]byte, error) {
	v, err := schema.Decode("the value", text)
	if err != nil {
		return nil, err
	}
	return schema.Canonical(v), nil
}

func sum(text []byte) string {
	s := sha256.Sum256(text)
	return hex.EncodeToString(s[:])
}
