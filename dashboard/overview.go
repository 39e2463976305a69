package dashboard

import "context"

func (s *site) overview(context.Context, *request) (*view, error) {
	return &view{Title: "Overview", Template: "overview"}, nil
}
