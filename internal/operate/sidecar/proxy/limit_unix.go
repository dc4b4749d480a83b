//go:build unix

package proxy

import (
	"math"
	"syscall"
)

// descriptorsAtMost is how many files this process may have open.
func descriptorsAtMost() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxInt32
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
