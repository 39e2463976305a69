package plainfile

import (
	"fmt"
	"os"
)

// Parsed reads a file and parses it. Its errors name the file, what it holds (noun, a plural such as "rules") and, if
// it does not exist, the variable that may name another one.
func Parsed[T any](path, noun, variable string, parse func([]byte) (T, error)) (parsed T, err error) {
	data, err := Read(path)
	if os.IsNotExist(err) {
		return parsed, fmt.Errorf("there are no %s at %s: create the file, or set %s to its path", noun, path, variable)
	}
	if err != nil {
		return parsed, fmt.Errorf("cannot read the %s: %w", noun, err)
	}
	if parsed, err = parse(data); err != nil {
		var none T
		return none, fmt.Errorf("the %s %s are invalid:\n%w", noun, path, err)
	}
	return parsed, nil
}
