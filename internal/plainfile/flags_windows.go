package plainfile

import "os"

const noFollow = 0

func block(*os.File) error { return nil }
