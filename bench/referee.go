package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// referee is memory that the processes of one measurement share. It costs the locks under test nothing:
// no command, no connection.
type referee struct {
	memory []byte
	board  *board
}

type board struct {
	inside   atomic.Int64 // holders at this moment
	overlaps atomic.Int64
	released atomic.Int64 // when the last release began, Unix nanoseconds
	turn     atomic.Int64 // acquisitions so far
	waiting  atomic.Int64
}

func newBoard() (path string, err error) {
	f, err := os.CreateTemp("", "bench-referee")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Name(), f.Truncate(4096)
}

func removeBoard(path string) { _ = os.Remove(path) } // what stays behind is in the system's temporary directory

func openReferee(path string) (*referee, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	memory, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the referee's memory: %w", err)
	}
	return &referee{memory, (*board)(unsafe.Pointer(&memory[0]))}, nil
}

func (r *referee) close() { _ = syscall.Munmap(r.memory) }

// enter and leave bracket the time in which a lock is held; two inside at once is what must not happen.
func (r *referee) enter() {
	if r.board.inside.Add(1) != 1 {
		r.board.overlaps.Add(1)
	}
}

func (r *referee) leave() { r.board.inside.Add(-1) }

func (r *referee) verdict() string {
	if n := r.board.overlaps.Load(); n > 0 {
		return fmt.Sprintf("two holders at once, %d times", n)
	}
	return ""
}
