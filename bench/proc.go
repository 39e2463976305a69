package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
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

// processStat is the content of /proc/PID/stat. Times are the sum of user and system time, in steps of 10 ms.
type processStat struct {
	parent int
	own    time.Duration
	ended  time.Duration // of its children that have ended, and of their children
}

func readStat(pid int) (s processStat, err error) {
	content, err := readProc(pid, "stat")
	if err != nil {
		return s, err
	}
	// The second field is a name in parentheses that may contain anything. Fields are numbered from 1.
	fields := strings.Fields(content[strings.LastIndexByte(content, ')')+1:])
	const afterName = 3
	const ppid, utime, stime, cutime, cstime = 4 - afterName, 14 - afterName, 15 - afterName, 16 - afterName,
		17 - afterName
	if len(fields) <= cstime {
		return s, fmt.Errorf("/proc/%d/stat has only %d fields", pid, len(fields))
	}
	var numbers [cstime + 1]int64
	for _, i := range []int{ppid, utime, stime, cutime, cstime} {
		if numbers[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return s, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture that Go runs on
	return processStat{
		parent: int(numbers[ppid]),
		own:    time.Duration(numbers[utime]+numbers[stime]) * tick,
		ended:  time.Duration(numbers[cutime]+numbers[cstime]) * tick,
	}, nil
}

// cpuTime returns the user and system time of a process, in steps of 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	return s.own, err
}

// cpuTimes returns the CPU time of each process, and then that of the server.
func cpuTimes(postmaster int, pids ...int) (used []time.Duration, err error) {
	for _, pid := range pids {
		own, wrong := cpuTime(pid)
		used, err = append(used, own), errors.Join(err, wrong)
	}
	server, wrong := cpuTimeOfServer(postmaster)
	return append(used, server), errors.Join(err, wrong)
}

// cpuTimeOfServer returns the CPU time of a Postgres server since its start: of the postmaster, of its children
// (backends, WAL writer, checkpointer, autovacuum and so on) and of ended children.
func cpuTimeOfServer(postmaster int) (time.Duration, error) {
	const tries = 20
	for range tries {
		before, err := readStat(postmaster)
		if err != nil {
			return 0, err
		}
		children, err := cpuTimeOfChildren(postmaster)
		if err != nil {
			return 0, err
		}
		after, err := readStat(postmaster)
		if err != nil {
			return 0, err
		}
		if after.ended == before.ended { // otherwise a child has ended, and counts twice or not at all
			return after.own + after.ended + children, nil
		}
	}
	return 0, errors.New("the server's processes end too often to add up their CPU time")
}

func cpuTimeOfChildren(parent int) (sum time.Duration, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // not a process
		}
		switch s, err := readStat(pid); {
		case errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH):
			continue // it has ended since the folder was read
		case err != nil:
			return 0, err
		case s.parent == parent:
			sum += s.own
		}
	}
	return sum, nil
}

// peakMemory returns the peak resident memory of a process, and residentMemory the current one, in bytes.
func peakMemory(pid int) (int64, error)     { return memoryOf(pid, "VmHWM:") }
func residentMemory(pid int) (int64, error) { return memoryOf(pid, "VmRSS:") }

func memoryOf(pid int, field string) (int64, error) {
	status, err := readProc(pid, "status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, field); ok {
			kB, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kB * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status does not say %s", pid, field)
}
