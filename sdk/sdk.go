// Package sdk has the files that services in other languages use to serve tools. gem init writes them.
package sdk

import "embed"

// TypeScript and Python have the files for their languages.
var (
	//go:embed typescript/*.js typescript/*.d.ts
	TypeScript embed.FS
	//go:embed python/*.py
	Python embed.FS
)
