//go:build !unix

package conformance

import (
	"fmt"
	"os/exec"
	"syscall"
)

const sigKill, sigStop, sigCont = syscall.SIGKILL, syscall.Signal(-1), syscall.Signal(-2)

func ownGroup(*exec.Cmd) {}

func signal(cmd *exec.Cmd, s syscall.Signal) error {
	if s != sigKill {
		return fmt.Errorf("%w: this system cannot stop a process", errNotTried)
	}
	return cmd.Process.Kill()
}
