package plainfile

import "os"

const (
	noBlock  = 0
	noFollow = 0
)

func block(*os.File) error { return nil }
