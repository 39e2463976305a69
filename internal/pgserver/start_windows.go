package pgserver

import (
	"context"
	"errors"
)

// Start always fails on Windows.
func Start(context.Context, Options) (*Server, error) {
	return nil, errors.New("a private Postgres server does not run on Windows: " +
		"set DATABASE_URL to a database that you have, or run gem inside WSL")
}
