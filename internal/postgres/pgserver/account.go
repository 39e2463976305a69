//go:build !windows

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// account is the user that runs the server, because Postgres refuses to run as root.
type account struct {
	name       string              // as used in a sentence
	credential *syscall.Credential // nil for the user of this process
}

// serverAccount selects the user and checks that this process may switch to it.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "the current user"}, nil
	}
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseInt(u.Uid, 10, 64) // macOS uses -2 for nobody
		gid, err2 := strconv.ParseInt(u.Gid, 10, 64)
		if err1 != nil || err2 != nil || uid == 0 {
			continue
		}
		a := account{"the user " + name, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		if err := a.command("/bin/sh", "-c", ":").Run(); err != nil {
			return account{}, fmt.Errorf("root cannot run Postgres, and may not switch to %s here (%w): "+
				"run gem as another user, or give the container the capabilities SETUID, SETGID and KILL", a.name, err)
		}
		return a, nil
	}
	return account{}, errors.New("root cannot run Postgres, and there is no user postgres or nobody: " +
		"create one (useradd --system postgres), or run gem as another user")
}

// inherited are the environment variables that commands inherit from this process. Others may have secrets, or make a
// program load code.
var inherited = []string{"PATH", "HOME", "TMPDIR"}

// command returns a command that runs as the user. It runs in its own session, so that Ctrl-C in the terminal does not
// reach it.
func (a account) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...) //nolint:noctx // the keeper outlives every context, and ends when its input closes
	cmd.Dir = "/"                      // the user may have no access to the current folder
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"}
	for _, name := range inherited {
		if value, set := os.LookupEnv(name); set {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: a.credential}
	return cmd
}

// canWrite reports whether the user can create files in dir.
func (a account) canWrite(dir string) bool {
	return a.command("/bin/sh", "-c", `[ -d "$1" ] && [ -w "$1" ] && [ -x "$1" ]`, "sh", dir).Run() == nil
}

// own makes the user the owner of a file or folder.
func (a account) own(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, int(a.credential.Uid), int(a.credential.Gid))
}

// Command returns a command that runs as the servers' user, which is the user of this process unless that is root. It
// is for other programs that refuse to run as root. It runs in its own session and in the folder /.
func Command(name string, args ...string) (*exec.Cmd, error) {
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	return as.command(name, args...), nil
}

// CanReach reports whether the user that runs the servers can reach a folder and all folders above it.
func CanReach(dir string) bool {
	as, err := serverAccount()
	return err == nil && as.command("/bin/sh", "-c", `[ -d "$1" ] && [ -x "$1" ]`, "sh", dir).Run() == nil
}
