package pgserver

import "syscall"

// memoryDir returns a folder in memory that has room for a server, or "". A container's /dev/shm often has only 64 MB.
func memoryDir() string {
	const dir, room = "/dev/shm", 1 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < room {
		return ""
	}
	return dir
}
