package login

import (
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"
)

const (
	sessionTime  = 12 * time.Hour
	mostSessions = 1000 // the oldest makes room for one more
)

// sessions are those of one process, by the hash of their cookie's value: whoever reads its memory gets nobody's cookie.
type sessions struct {
	now func() time.Time

	mu   sync.Mutex
	ends map[[sha256.Size]byte]time.Time
	link [sha256.Size]byte // of the link that is good for one exchange; zero for none
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, ends: map[[sha256.Size]byte]time.Time{}}
}

// newLink makes the token of a link, and ends that of the one before.
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

func (s *sessions) add() (cookie string) {
	var oldest [sha256.Size]byte
	now := s.now()
	for hash, end := range s.ends {
		if !now.Before(end) {
			delete(s.ends, hash)
		} else if first, found := s.ends[oldest]; !found || end.Before(first) {
			oldest = hash
		}
	}
	if len(s.ends) >= mostSessions {
		delete(s.ends, oldest)
	}
	cookie = rand.Text()
	s.ends[sha256.Sum256([]byte(cookie))] = now.Add(sessionTime)
	return cookie
}

// has reports whether a cookie is that of an open session.
func (s *sessions) has(cookie string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, found := s.ends[sha256.Sum256([]byte(cookie))]
	return found && s.now().Before(end)
}

func (s *sessions) end(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ends, sha256.Sum256([]byte(cookie)))
}
