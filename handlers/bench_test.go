package handlers_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/registry"
)

// Desk is a domain with a tool that does nothing.
type Desk struct{}

// Lead is a typical input, that of leads.create.
type Lead struct {
	Name, Phone, Suburb, Email, Source, Notes string
}

// Created is its output.
type Created struct {
	LeadID string `json:"lead_id"`
}

// Create is desk.create.
func (Desk) Create(context.Context, *handlers.Call, Lead) (Created, error) {
	return Created{LeadID: "5f0c7c0e-9d5e-4c39-9df0-4b8f2b0f3a11"}, nil
}

// BenchmarkValidateAndDispatch is what a call costs apart from its statements: its input is checked, decoded and given
// to its handler, and the output encoded and checked.
func BenchmarkValidateAndDispatch(b *testing.B) {
	tools, err := registry.Parse(gem.BuiltInRegistry)
	if err != nil {
		b.Fatal(err)
	}
	tool, _ := tools.Tool("leads.create")
	bound, err := binding.Bind(Desk{})
	if err != nil {
		b.Fatal(err)
	}
	input := json.RawMessage(
		`{"name": "Ada Byron", "phone": "+15550100", "suburb": "Soho", "email": "ada@example.com", "source": "referral", "notes": "Two broken tiles."}`)
	b.ReportAllocs()
	for b.Loop() {
		if faults := tool.ValidateInput(input); len(faults) > 0 {
			b.Fatal(faults)
		}
		handler, _ := bound.For("desk.create")
		output, err := handler.Run(b.Context(), &handlers.Call{Tool: "desk.create", Input: input}, nil, nil)
		if err != nil {
			b.Fatal(err)
		}
		if faults := tool.ValidateOutput(output); len(faults) > 0 {
			b.Fatal(faults)
		}
	}
}
