//go:build unix

package conformance

import (
	"os/exec"
	"syscall"
)

const sigKill, sigStop, sigCont = syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCONT

// ownGroup has signals reach all that a command starts.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func signal(cmd *exec.Cmd, s syscall.Signal) error { return syscall.Kill(-cmd.Process.Pid, s) }
