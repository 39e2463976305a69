package dashboard

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
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

// loadStatic gives each file a name with its hash, under which browsers keep it for good.
func (s *site) loadStatic() error {
	s.assets, s.hashed = map[string]*asset{}, map[string]string{}
	names, err := fs.Glob(staticFiles, "static/*.*s")
	if err != nil {
		return err
	}
	for _, name := range names {
		body, err := staticFiles.ReadFile(name)
		if err != nil {
			return err
		}
		file, ext := path.Base(name), path.Ext(name)
		sum := sha256.Sum256(body)
		hashed := fmt.Sprintf("%s.%x%s", strings.TrimSuffix(file, ext), sum[:6], ext)
		s.assets[hashed] = &asset{mime.TypeByExtension(ext), body}
		s.hashed[file] = hashed
	}
	return nil
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
