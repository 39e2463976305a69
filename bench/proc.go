package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

var errNoProc = errors.New("there is no /proc of Linux")

func readProc(pid int, file string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", errNoProc
	}
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	return string(content), err
}

// cpuTime is what a process took of the processors, in its own code and in the kernel; in steps of 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	stat, err := readProc(pid, "stat")
	if err != nil {
		return 0, err
	}
	// The second field is a name in parentheses that may hold anything; utime and stime are fields 14 and 15.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const utime, stime = 14 - 3, 15 - 3
	if len(fields) <= stime {
		return 0, fmt.Errorf("/proc/%d/stat has only %d fields", pid, len(fields))
	}
	var ticks int64
	for _, field := range []string{fields[utime], fields[stime]} {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture that Go runs on
	return time.Duration(ticks) * tick, nil
}

// peakMemory is the most that a process had resident, in bytes.
func peakMemory(pid int) (int64, error) {
	status, err := readProc(pid, "status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kB, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kB * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status does not say VmHWM", pid)
}
