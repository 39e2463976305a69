package login

import (
	"errors"
	"fmt"

	"golang.org/x/crypto/bcrypt"
)

const (
	leastPassword = 8  // bytes
	mostPassword  = 72 // bytes: bcrypt reads no more
	hashCost      = 12
	mostHashCost  = 15 // 3 s and more for each try
)

// HashPassword returns a password's hash, for GEM_DASHBOARD_PASSWORD_HASH.
func HashPassword(password []byte) (string, error) {
	switch n := len(password); {
	case n < leastPassword:
		return "", fmt.Errorf("a password has %d characters or more", leastPassword)
	case n > mostPassword:
		return "", fmt.Errorf("a password may have %d bytes", mostPassword)
	}
	hash, err := bcrypt.GenerateFromPassword(password, hashCost)
	return string(hash), err
}

// checkHash says why a hash cannot be used.
func checkHash(hash string) error {
	cost, err := bcrypt.Cost([]byte(hash))
	switch {
	case err != nil:
		return errors.New("it is no hash that gem dashboard hash prints; a shell or a compose file may have replaced its $, so put it in single quotes")
	case cost > mostHashCost:
		return fmt.Errorf("its cost is %d, with which a login takes too long: %d at most", cost, mostHashCost)
	}
	return nil
}

func isPassword(password, hash string) bool {
	return len(password) <= mostPassword && bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil
}
