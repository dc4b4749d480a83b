//go:build !race

package proxy

import (
	"syscall"
	"unsafe"
)

// transfer reads or writes a socket that never blocks, without the runtime's bookkeeping for calls that do: see package rawconn.
func transfer(trap, fd uintptr, b []byte) (int, syscall.Errno) {
	for {
		n, _, err := syscall.RawSyscall6(trap, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, 0, 0)
		if err != syscall.EINTR {
			return int(n), err
		}
	}
}
