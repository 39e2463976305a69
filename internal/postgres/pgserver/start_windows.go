package pgserver

import (
	"context"
	"errors"
	"os/exec"
)

var errWindows = errors.New("a private Postgres server does not run on Windows: " +
	"set DATABASE_URL to a database of yours, or run gem inside WSL")

// ErrPortTaken is never returned on Windows.
var ErrPortTaken = errors.New("another program has taken the port")

// Start always returns an error on Windows.
func Start(context.Context, Options) (*Server, error) { return nil, errWindows }

// Command always returns an error on Windows.
func Command(string, ...string) (*exec.Cmd, error) { return nil, errWindows }

// CanReach always returns false on Windows.
func CanReach(string) bool { return false }
