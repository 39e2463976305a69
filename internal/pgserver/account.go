//go:build !windows

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// account is the user that the server runs as, since Postgres refuses to run as root. Nil is the user of this process.
type account struct {
	name     string
	uid, gid uint32
}

// serverAccount chooses the user, and proves that this process may become it.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseInt(u.Uid, 10, 64)
		gid, err2 := strconv.ParseInt(u.Gid, 10, 64)
		if err1 != nil || err2 != nil || uid == 0 {
			continue
		}
		a := &account{name: name, uid: uint32(uid), gid: uint32(gid)} // macOS writes nobody as -2
		if err := a.command("/bin/sh", "-c", ":").Run(); err != nil {
			return nil, fmt.Errorf("root can not run Postgres, and may not become %s here (%w): "+
				"run gem as another user, or give the container the capabilities SETUID, SETGID and KILL", a, err)
		}
		return a, nil
	}
	return nil, errors.New("root can not run Postgres, and there is no user postgres and no user nobody: " +
		"create one (useradd --system postgres), or run gem as another user")
}

// String names the user in a sentence.
func (a *account) String() string {
	if a == nil {
		return "the current user"
	}
	return "the user " + a.name
}

// command is a command that runs as the user, in a session of its own, out of reach of the terminal's Ctrl-C.
func (a *account) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...) //nolint:noctx // the keeper outlives every context, and ends when its input closes
	cmd.Dir = "/"                      // the current folder may be closed to the user
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return cmd
}

// environment is that of this process without what changes a server: its own variables, and the language of its messages.
func environment() []string {
	var env []string
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG") || strings.HasPrefix(v, "TZ=") {
			continue
		}
		env = append(env, v)
	}
	return append(env, "LC_ALL=C", "TZ=UTC")
}

// canWrite says whether the user can create files in dir.
func (a *account) canWrite(dir string) bool {
	return a.command("/bin/sh", "-c", `[ -d "$1" ] && [ -w "$1" ] && [ -x "$1" ]`, "sh", dir).Run() == nil
}

// own gives the file or folder to the user.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}
