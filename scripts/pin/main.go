// Command pin writes the digests of the base images behind their tags, as in postgres:17@sha256:…, into the
// Dockerfiles, docker-compose.yml and the workflows. It asks the registries what each tag means now, even if there
// is a digest already, and changes no file unless all of them answered. Run it in the root of the repository: make pin.
package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	if err := pin(".", &http.Client{Timeout: 30 * time.Second}, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "pin:", err)
		os.Exit(1)
	}
}

var (
	files = []string{"Dockerfile", "deploy/*.Dockerfile", "docker-compose.yml", ".github/workflows/*.yml"}
	// image is a tag where those files name one: the default of a build argument or of a variable, or the image of a
	// service.
	image = regexp.MustCompile(`(_IMAGE=|_IMAGE:-|image: )([a-z0-9][\w./-]*:[\w.-]+)(@sha256:[0-9a-f]{64})?`)
)

func pin(root string, client *http.Client, out io.Writer) error {
	texts, digests := map[string]string{}, map[string]string{}
	for _, pattern := range files {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			texts[path] = string(text)
			for _, found := range image.FindAllStringSubmatch(texts[path], -1) {
				if digests[found[2]] != "" {
					continue
				}
				if digests[found[2]], err = digest(client, found[2]); err != nil {
					return fmt.Errorf("%s: %w", found[2], err)
				}
				fmt.Fprintln(out, found[2]+"@"+digests[found[2]])
			}
		}
	}
	for path, text := range texts {
		pinned := image.ReplaceAllStringFunc(text, func(s string) string {
			found := image.FindStringSubmatch(s)
			return found[1] + found[2] + "@" + digests[found[2]]
		})
		if pinned == text {
			continue
		}
		if err := os.WriteFile(path, []byte(pinned), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// digest is that of the manifest behind a tag: for an image of several platforms, that of their list.
func digest(client *http.Client, tagged string) (string, error) {
	host, name := "registry-1.docker.io", tagged
	if first, rest, ok := strings.Cut(tagged, "/"); ok && strings.ContainsAny(first, ".:") {
		host, name = first, rest
	} else if !ok {
		name = "library/" + tagged
	}
	name, tag, _ := strings.Cut(name, ":")
	manifest := "https://" + host + "/v2/" + name + "/manifests/" + tag
	status, header, body, err := get(client, manifest, "")
	if err == nil && status == http.StatusUnauthorized {
		var token string
		if token, err = anonymous(client, header.Get("WWW-Authenticate")); err == nil {
			status, header, body, err = get(client, manifest, token)
		}
	}
	if err != nil {
		return "", err
	}
	if status != http.StatusOK {
		return "", fmt.Errorf("%s answers %d", host, status)
	}
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256(body))
	if says := header.Get("Docker-Content-Digest"); says != "" && says != sum {
		return "", fmt.Errorf("%s says %s of a manifest that has %s", host, says, sum)
	}
	return sum, nil
}

// anonymous gets the token with which a registry lets anyone read a public image, from where its challenge says.
func anonymous(client *http.Client, challenge string) (string, error) {
	query, realm := url.Values{}, ""
	for _, found := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(challenge, -1) {
		if found[1] == "realm" {
			realm = found[2]
		} else {
			query.Set(found[1], found[2])
		}
	}
	if !strings.HasPrefix(challenge, "Bearer ") || !strings.HasPrefix(realm, "https://") {
		return "", errors.New("the registry asks for a login")
	}
	status, _, body, err := get(client, realm+"?"+query.Encode(), "")
	if err != nil {
		return "", err
	}
	var given struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal(body, &given); err != nil || status != http.StatusOK {
		return "", fmt.Errorf("no token from %s: it answers %d", realm, status)
	}
	return cmp.Or(given.Token, given.AccessToken), nil
}

func get(client *http.Client, address, token string) (status int, header http.Header, body []byte, err error) {
	request, err := http.NewRequest(http.MethodGet, address, nil) //nolint:noctx // the client has a timeout
	if err != nil {
		return 0, nil, nil, err
	}
	for _, kind := range []string{"oci.image.index.v1", "docker.distribution.manifest.list.v2", "oci.image.manifest.v1",
		"docker.distribution.manifest.v2"} {
		request.Header.Add("Accept", "application/vnd."+kind+"+json")
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer answer.Body.Close()
	const most = 4 << 20 // what registries allow a manifest
	body, err = io.ReadAll(io.LimitReader(answer.Body, most))
	return answer.StatusCode, answer.Header, body, err
}
