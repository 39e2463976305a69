package migrations

import (
	"embed"
	"io/fs"
)

//go:embed domains/*.sql
var domainFiles embed.FS

// Domains returns the tables of the built-in domains.
func Domains() Source {
	files, err := fs.Sub(domainFiles, "domains")
	if err != nil {
		panic(err)
	}
	return Source{Name: "domains", Files: files}
}
