//go:build !linux && !windows

package pgserver

// memoryDir returns "": only Linux has a folder in memory that every user can write to.
func memoryDir() string { return "" }
