//go:build !linux && !windows

package pgserver

// memoryDir is empty: only Linux has a folder in memory that everyone can use.
func memoryDir() string { return "" }
