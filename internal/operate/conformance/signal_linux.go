package conformance

import "syscall"

func endsWithUs(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
