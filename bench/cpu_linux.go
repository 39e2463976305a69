package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpuTimes is what this process and the whole machine have used.
func cpuTimes() (own, busy, idle time.Duration) {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	own = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	stat, _ := os.ReadFile("/proc/stat")
	fields := strings.Fields(strings.SplitN(string(stat), "\n", 2)[0])
	at := func(i int) time.Duration {
		n, _ := strconv.Atoi(fields[i])
		return time.Duration(n) * 10 * time.Millisecond
	}
	return own, at(1) + at(2) + at(3) + at(6) + at(7), at(4) + at(5)
}
