// Package gem carries the registry that is built into the binary. What the program does is in cmd/gem.
package gem

import _ "embed"

// BuiltInRegistry is tools.registry.json as it was when the binary was built.
//
//go:embed tools.registry.json
var BuiltInRegistry []byte
