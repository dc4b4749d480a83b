package compat

import "time"

// Tune changes what a Locker without a Namespace derives from its options. Call it before the first attempt.
func Tune(l Locker, renewEvery, poll time.Duration) Locker {
	opts := &l.(*locker).opts
	if renewEvery > 0 {
		opts.renewEvery = renewEvery
	}
	if poll > 0 {
		opts.poll = poll
	}
	return l
}

// MeasureAlways has the server's clock read before each use. Call it before the first attempt.
func MeasureAlways(l Locker) Locker {
	l.(*locker).serverClock.Refresh = time.Nanosecond
	return l
}

// ShortenMemberLease makes the leases of members that join from now on no longer than that; undo ends it.
func ShortenMemberLease(d time.Duration) (undo func()) {
	before := longestMemberLease
	longestMemberLease = d
	return func() { longestMemberLease = before }
}
