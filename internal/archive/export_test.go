package archive

// ReadLine is for the tests: they cannot make lines of 256 MiB.
var ReadLine = readLine
