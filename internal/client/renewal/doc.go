// Package renewal keeps the leases of locks alive: one goroutine for all locks of a Locker, one round trip
// for all that are due.
//
// A lease has a deadline on the process's own monotonic clock, counted from before the last renewing
// command that came through was sent. When it is there, the lock's owner is told, whatever has become of
// commands and connections.
package renewal
