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
	mostHashCost  = 15 // 3 s or more for each attempt
)

// HashPassword returns a password's hash, for GEM_DASHBOARD_PASSWORD_HASH.
func HashPassword(password []byte) (string, error) {
	switch n := len(password); {
	case n < leastPassword:
		return "", fmt.Errorf("a password needs at least %d characters", leastPassword)
	case n > mostPassword:
		return "", fmt.Errorf("a password may have at most %d bytes", mostPassword)
	}
	hash, err := bcrypt.GenerateFromPassword(password, hashCost)
	return string(hash), err
}

// checkHash returns an error for a hash that cannot be used.
func checkHash(hash string) error {
	cost, err := bcrypt.Cost([]byte(hash))
	switch {
	case err != nil:
		return errors.New("it is not a hash that gem dashboard hash printed; a shell or a compose file may have replaced " +
			"its " +
			"$, so put it in single quotes")
	case cost > mostHashCost:
		return fmt.Errorf("its cost is %d, which makes a login too slow: at most %d", cost, mostHashCost)
	}
	return nil
}

func isPassword(password, hash string) bool {
	return len(password) <= mostPassword && bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil
}
