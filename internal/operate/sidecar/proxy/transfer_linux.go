//go:build !race

package proxy

import (
	"syscall"
	"unsafe"
)

// transfer reads or writes a socket that never blocks, without the runtime's bookkeeping for calls that do: see package rawconn.
func transfer(trap, fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, _, err := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if err != syscall.EINTR {
			return int(n), err
		}
	}
}
