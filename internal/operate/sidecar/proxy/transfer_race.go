//go:build linux && race

package proxy

import "syscall"

// transfer goes by package syscall, which tells the race detector that what was written is read later.
func transfer(trap, fd uintptr, b []byte) (n int, _ syscall.Errno) {
	do := syscall.Read
	if trap == syscall.SYS_SENDTO {
		do = syscall.Write
	}
	for {
		n, err := do(int(fd), b)
		if errno, _ := err.(syscall.Errno); errno != syscall.EINTR {
			return n, errno
		}
	}
}
