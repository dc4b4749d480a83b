package bench

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// section is a stay inside a lock, of a length that is exact. time.Sleep's is not: an idle Go process
// sleeps in epoll_wait, whose timeout the runtime rounds up to whole milliseconds, again whenever
// something else has woken the process meanwhile. A lock whose next waiter hears from the server during a
// section of 1 ms would be charged with up to 1 ms for it. The kernel's timer has no such grain.
type section struct{ timer *os.File }

func newSection() (section, error) {
	const monotonic = 1
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, monotonic, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errno != 0 {
		return section{}, os.NewSyscallError("timerfd_create", errno)
	}
	return section{os.NewFile(fd, "timer")}, nil
}

func (s section) close() { _ = s.timer.Close() }

func (s section) stay(d time.Duration) error {
	spec := [2]syscall.Timespec{1: syscall.NsecToTimespec(d.Nanoseconds())}
	raw, err := s.timer.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	})
	if err == nil && errno != 0 {
		err = os.NewSyscallError("timerfd_settime", errno)
	}
	if err != nil {
		return err
	}
	var times [8]byte
	_, err = s.timer.Read(times[:])
	return err
}
