package login

import (
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/gemworker/gem/dashboard"
)

const (
	sessionTime  = 12 * time.Hour
	mostSessions = 1000 // the oldest makes room for one more
)

// sessions are the sessions of one process, by the hash of the cookie's value: its memory reveals no cookie.
type sessions struct {
	now func() time.Time

	mu   sync.Mutex
	ends map[[sha256.Size]byte]time.Time
	of   map[[sha256.Size]byte]dashboard.User // the sessions of people who signed in at an issuer
	link [sha256.Size]byte                    // of the link, which can be used once; zero if there is none
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, ends: map[[sha256.Size]byte]time.Time{}, of: map[[sha256.Size]byte]dashboard.User{}}
}

// newLink returns the token of a new link, and invalidates the previous one.
func (s *sessions) newLink() (token string) {
	token = rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = sha256.Sum256([]byte(token))
	return token
}

// exchange opens a session for the token of the link, once.
func (s *sessions) exchange(token string) (cookie string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token == "" || sha256.Sum256([]byte(token)) != s.link {
		return "", false
	}
	s.link = [sha256.Size]byte{}
	return s.add(), true
}

// open opens a session, and returns the value of its cookie.
func (s *sessions) open() (cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add()
}

// openFor opens a session of a user.
func (s *sessions) openFor(u dashboard.User) (cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cookie = s.add()
	s.of[sha256.Sum256([]byte(cookie))] = u
	return cookie
}

func (s *sessions) add() (cookie string) {
	var oldest [sha256.Size]byte
	now := s.now()
	for hash, end := range s.ends {
		if !now.Before(end) {
			s.remove(hash)
		} else if first, found := s.ends[oldest]; !found || end.Before(first) {
			oldest = hash
		}
	}
	if len(s.ends) >= mostSessions {
		s.remove(oldest)
	}
	cookie = rand.Text()
	s.ends[sha256.Sum256([]byte(cookie))] = now.Add(sessionTime)
	return cookie
}

// has reports whether a cookie belongs to an open session.
func (s *sessions) has(cookie string) bool {
	_, open := s.user(cookie)
	return open
}

// user returns the user of an open session. It is zero unless the person signed in at an issuer.
func (s *sessions) user(cookie string) (u dashboard.User, open bool) {
	hash := sha256.Sum256([]byte(cookie))
	s.mu.Lock()
	defer s.mu.Unlock()
	end, found := s.ends[hash]
	return s.of[hash], found && s.now().Before(end)
}

func (s *sessions) end(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(sha256.Sum256([]byte(cookie)))
}

func (s *sessions) remove(hash [sha256.Size]byte) {
	delete(s.ends, hash)
	delete(s.of, hash)
}
