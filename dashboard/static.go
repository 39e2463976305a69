package dashboard

import (
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var staticFiles embed.FS

type asset struct {
	kind string
	body []byte
}

// loadStatic gives each file a name with its hash, so that browsers can cache it forever.
func (s *site) loadStatic() error {
	s.assets, s.hashed = map[string]*asset{}, map[string]string{}
	names, err := staticFiles.ReadDir("static")
	if err != nil {
		return err
	}
	for _, name := range names {
		body, err := readStatic(name.Name())
		if err != nil {
			return err
		}
		file := strings.TrimSuffix(name.Name(), ".gz")
		ext := path.Ext(file)
		if ext == "" {
			continue // the list
		}
		sum := sha256.Sum256(body)
		hashed := fmt.Sprintf("%s.%x%s", strings.TrimSuffix(file, ext), sum[:6], ext)
		s.assets[hashed] = &asset{mime.TypeByExtension(ext), body}
		s.hashed[file] = hashed
	}
	return nil
}

// readStatic reads a file. It decompresses files whose name ends in .gz, which take less room in the program.
func readStatic(name string) ([]byte, error) {
	f, err := staticFiles.Open("static/" + name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !strings.HasSuffix(name, ".gz") {
		return io.ReadAll(f)
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

func (s *site) static(w http.ResponseWriter, q *http.Request) {
	a := s.assets[q.PathValue("name")]
	if a == nil {
		http.NotFound(w, q)
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Content-Type", a.kind)
	s.send(w, q, http.StatusOK, a.body)
}
