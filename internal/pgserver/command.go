//go:build !windows

package pgserver

import "os/exec"

// Command is a command that runs as the user that the servers run as: this one, unless that is root. It is for other
// programs that refuse to run as root. It runs in a session of its own and in the folder /.
func Command(name string, args ...string) (*exec.Cmd, error) {
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	return as.command(name, args...), nil
}
