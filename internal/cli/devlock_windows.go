package cli

import "os"

// tryLock locks nothing: gem dev does not run on Windows.
func tryLock(*os.File, bool) (bool, error) { return true, nil }

// knownToOthers returns why other users may know the contents of a file, as far as that can be determined.
func knownToOthers(*os.File) string { return "" }
