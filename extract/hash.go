package extract

import "encoding/json"

// Request is the input of the tool that asks a model about one shard.
type Request struct {
	Hash    string          `json:"request_hash"`
	Scope   string          `json:"scope"` // whose requests share their answers: a caller, or everybody if it is empty
	Program Program         `json:"program"`
	Route   string          `json:"route,omitempty"` // not part of the hash: Model is
	Model   string          `json:"model"`           // the model names of the route's arms, joined by commas
	Params  json.RawMessage `json:"params"`          // of the model's request, an object
	Before  string          `json:"before"`
	Text    string          `json:"text"` // the body
	After   string          `json:"after"`
	Prompt  int             `json:"prompt"` // the number of the wording, see [PromptNumber]
}

// Sum returns the hash that the request must have.
func (r *Request) Sum() string { return "" }

// Window is what the request shows to the model.
func (r *Request) Window() Window { return Window{r.Before, r.Text, r.After} }
