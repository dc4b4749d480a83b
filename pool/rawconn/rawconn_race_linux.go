//go:build race

package rawconn

import "sync/atomic"

var sockets atomic.Int64

// synchronize tells the race detector what net tells it of every connection: that what was written by one
// goroutine, and read by another one, puts the two in an order. Who relies on a lock of Redis within one
// process would be told of races otherwise.
func synchronize() { sockets.Add(1) }
