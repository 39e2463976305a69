package migrations

// The number of the functions, their files in order, and the hash of all of them.
var (
	FunctionsNumber = functionsNumber
	FunctionFiles   = functionFiles
)

func FunctionsHash() (string, error) {
	whole, err := allFunctions()
	return whole.sha256(), err
}
