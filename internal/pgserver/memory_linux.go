package pgserver

import "syscall"

// memoryDir is a folder in memory with room for a server, or empty. A container's /dev/shm often has 64 MB, which is
// not enough; and where it is no tmpfs, it is no faster than the disk.
func memoryDir() string {
	const dir, tmpfs, room = "/dev/shm", 0x01021994, 1 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || int64(fs.Type) != tmpfs { //nolint:unconvert // an int32 on some architectures
		return ""
	}
	if fs.Bavail*uint64(fs.Bsize) < room {
		return ""
	}
	return dir
}
