package archive

import "os"

// closeToOthers does nothing: the rights of a file are those of its folder.
func closeToOthers(*os.File) error { return nil }
