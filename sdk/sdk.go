// Package sdk has the files with which services in other languages serve tools. gem init writes them.
package sdk

import "embed"

// TypeScript and Python have the files of a language.
var (
	//go:embed typescript/*.js typescript/*.d.ts
	TypeScript embed.FS
	//go:embed python/*.py
	Python embed.FS
)
