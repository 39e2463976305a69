package cli

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gemworker/gem/backends"
	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/internal/postgres/pgserver"
	"github.com/gemworker/gem/internal/provider/routes"
	"github.com/gemworker/gem/notify"
	"github.com/gemworker/gem/registry"
	"github.com/gemworker/gem/rules"
)

const (
	devFolder = ".gem" // of gem dev, in the working directory
	devFile   = devFolder + "/dev.json"
)

// ofAnother is the reason that [knownToOthers] returns for a file of another user.
const ofAnother = "belongs to another user"

// devState is the content of .gem/dev.json: the values that gem dev reuses at each start. It holds the password of the
// superuser, so only its owner can read it. A running gem dev holds the lock on the file.
type devState struct {
	Port      int    `json:"port"`
	Password  string `json:"password"`
	RESTPort  int    `json:"rest_port"`
	JWTSecret string `json:"jwt_secret"`
	PID       int    `json:"pid,omitempty"` // of the last gem dev

	file *os.File
}

// openDevState creates or opens the state of the working directory and locks it. It fails if gem dev runs here, or if
// others may know the secrets of the file, unless fresh replaces them.
func openDevState(fresh bool) (*devState, error) {
	f, locked, err := lockDevFile()
	if err != nil {
		return nil, fmt.Errorf("gem dev keeps its port and password in the folder %s: %w", devFolder, err)
	}
	s := &devState{file: f}
	text, err := plainfile.ReadFrom(f)
	known := ""
	if len(text) > 0 {
		known = knownToOthers(f)
	}
	if err == nil && len(text) > 0 && (known == "" || !fresh) {
		err = json.Unmarshal(text, s)
	}
	switch {
	case !locked:
		err = usage("it is already running in this folder (process %d): use it from here, or stop it first", s.PID)
	case err == nil && known != "" && !fresh:
		err = fmt.Errorf("%s %s, so others may know its passwords; it may belong to a clone of someone else's folder: "+
			"gem dev --fresh chooses new ones, and drops the data of this folder. If nobody else has read it: chmod 600 %[1]s",
			devFile, known)
	case err != nil:
		err = fmt.Errorf("%s cannot be read (%w): delete it to let gem dev choose a new port and password", devFile, err)
	default:
		err = s.complete()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// lockDevFile opens the file, and reports whether it could be locked.
func lockDevFile() (f *os.File, locked bool, err error) {
	if err := os.Mkdir(devFolder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, false, err
	}
	for _, name := range []string{devFolder, devFile} {
		if err := notALink(name); err != nil {
			return nil, false, err
		}
	}
	if f, err = plainfile.Open(devFile, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, false, err
	}
	if known := knownToOthers(f); known == ofAnother {
		_ = f.Close()
		return nil, false, fmt.Errorf("%s %s, who would know the password", devFile, known)
	}
	locked, err = plainfile.TryLock(f, true)
	for tries := 0; !locked && err == nil && tries < 10; tries++ { // a command may hold the lock briefly
		time.Sleep(20 * time.Millisecond)
		locked, err = plainfile.TryLock(f, true)
	}
	return f, locked, err
}

// notALink returns an error for a link or another special file where gem dev writes: a clone may contain one that
// leads elsewhere.
func notALink(name string) error {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular() && !info.IsDir():
		return fmt.Errorf("%s is a link or another special file, and gem dev writes only into the folder itself: delete it",
			name)
	}
	return nil
}

// complete chooses the missing values, and writes the files of the folder.
func (s *devState) complete() (err error) {
	for _, port := range []*int{&s.Port, &s.RESTPort} {
		for *port == 0 || s.Port == s.RESTPort {
			if *port, err = steadyPort(); err != nil {
				return err
			}
		}
	}
	s.Password = cmp.Or(s.Password, rand.Text())
	s.JWTSecret = cmp.Or(s.JWTSecret, rand.Text()+rand.Text()) // PostgREST wants 32 bytes
	s.PID = os.Getpid()
	return errors.Join(s.save(), writeDevFolder())
}

// save overwrites the file in place, since its lock belongs to the open file.
func (s *devState) save() error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	_, err = s.file.WriteAt(append(text, '\n'), 0)
	return errors.Join(err, s.file.Truncate(int64(len(text)+1)), s.file.Chmod(0o600))
}

// passwordOf returns the password of another login. It does not change between starts, since people copy the printed
// lines into a client's settings.
func (s *devState) passwordOf(login string) string {
	mac := hmac.New(sha256.New, []byte(s.JWTSecret))
	_, _ = mac.Write([]byte("login " + login)) // it never fails
	return hex.EncodeToString(mac.Sum(nil))
}

// close releases the lock.
func (s *devState) close() { _ = s.file.Close() }

// url returns the connection string of the private database.
func (s *devState) url() string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", s.Password), Host: "127.0.0.1:" + strconv.Itoa(s.Port),
		Path: "/postgres", RawQuery: "sslmode=disable",
	}
	return u.String()
}

// runningDev returns the connection string of the gem dev that runs in the working directory, or an empty text.
func runningDev() string {
	if notALink(devFolder) != nil {
		return ""
	}
	f, err := plainfile.Open(devFile, os.O_RDONLY, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if knownToOthers(f) != "" { // it may lead to a server of another user
		return ""
	}
	if locked, err := plainfile.TryLock(f, false); locked || err != nil {
		return ""
	}
	var s devState
	text, err := plainfile.ReadFrom(f)
	if err != nil || json.Unmarshal(text, &s) != nil || s.Port == 0 {
		return ""
	}
	return s.url()
}

// steadyPort chooses a free port below the range of outgoing connections, which could otherwise take it at any time.
func steadyPort() (int, error) {
	const first, last = 15000, 32000
	for range 100 {
		n, err := rand.Int(rand.Reader, big.NewInt(last-first))
		if err != nil {
			return 0, err
		}
		port := first + int(n.Int64())
		if l, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(port)); err == nil { //nolint:noctx // returns at once
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port was found")
}

// writeDevFolder makes git ignore the folder, and writes the schemas that editors read.
func writeDevFolder() error {
	files := map[string][]byte{
		".gitignore":           []byte("*\n"),
		"registry.schema.json": registry.FileSchema(),
		"rules.schema.json":    rules.FileSchema(),
		"scenario.schema.json": rules.ScenarioSchema(),
		"notify.schema.json":   notify.FileSchema(),
		"domains.schema.json":  backends.FileSchema(),
		"routes.schema.json":   routes.FileSchema(),
	}
	for name, text := range files {
		if err := notALink(filepath.Join(devFolder, name)); err != nil {
			return err
		}
		if err := plainfile.Write(filepath.Join(devFolder, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// dataFolder returns the folder for the data of the working directory: below it if the server's user can reach it,
// otherwise in the user's cache, under a hash of the directory's path.
func dataFolder() (string, error) {
	here, err := filepath.Abs(devFolder)
	if err != nil {
		return "", err
	}
	if pgserver.CanReach(here) {
		return filepath.Join(here, "data"), nil
	}
	cache, err := os.UserCacheDir()
	if os.Geteuid() == 0 && os.Getenv("XDG_CACHE_HOME") == "" {
		// Postgres does not run as root, and its user cannot reach root's own folder.
		cache, err = "/var/cache", nil
	}
	if err != nil {
		return "", fmt.Errorf("no folder for the data: name one with --dir (%w)", err)
	}
	if real, err := filepath.EvalSymlinks(here); err == nil {
		here = real
	}
	return filepath.Join(cache, "gem", "dev", fmt.Sprintf("%x", sha256.Sum256([]byte(here)))[:16]), nil
}
