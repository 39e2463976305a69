package grounding

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/gemworker/gem/internal/schema"
)

// Request is what a model is asked about one shard, as JSON the input of the tool that asks. Its hash names it: equal
// requests have equal answers.
type Request struct {
	// Hash is what [Request.Sum] returns.
	Hash string `json:"request_hash"`
	// Scope names the caller who may share the answer; everybody if it is empty.
	Scope   string  `json:"scope"`
	Program Program `json:"program"`
	// Route is how the model is found. It is not part of the hash: Model is.
	Route string `json:"route,omitempty"`
	// Model holds the names of the models of the route's targets, in their order, with commas between them.
	Model string `json:"model"`
	// Params is a JSON object of the parameters of the model's request. None is {}.
	Params json.RawMessage `json:"params"`
	Before string          `json:"before"`
	Text   string          `json:"text"` // the body
	After  string          `json:"after"`
	// Prompt is the number of the wording, see [PromptNumber].
	Prompt int `json:"prompt"`
}

// hashed is what the hash of a request counts. Its canonical form is its JSON, whose keys are in the order of their
// letters.
type hashed struct {
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

// hashVersion is the number of the formula of the hash.
const hashVersion = 1

// Request returns the request about a window, with its hash. params is a JSON object, or nil for none.
func (c *Compiled) Request(w Window, scope, route, model string, params json.RawMessage) Request {
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

// Sum returns the hash that the request must have: the sha256, in hexadecimal, of its canonical form.
// It is "" for a program or parameters that are not JSON.
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
	return sum(schema.Canonical(hashed{r.After, r.Before, r.Model, params, program, r.Prompt, r.Scope, r.Text,
		hashVersion}))
}

// Window is what the request shows to the model.
func (r *Request) Window() Window { return Window{r.Before, r.Text, r.After} }

// hash returns the sha256, in hexadecimal, of the program's canonical form.
func (p *Program) hash() (string, error) {
	text, err := p.canonical()
	return sum(text), err
}

// canonical returns the form in which equal programs are equal: examples are there, even if there are none.
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

// canonical returns the canonical form of a JSON text.
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
