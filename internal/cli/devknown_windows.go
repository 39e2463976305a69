package cli

import "os"

// knownToOthers returns why other users may know the contents of a file. It finds only reasons that Windows reports.
func knownToOthers(*os.File) string { return "" }
