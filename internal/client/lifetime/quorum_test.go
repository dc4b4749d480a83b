package lifetime

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestASlowerServerIsRenewedToo: a majority that answers sooner spares no server its renewals. Otherwise its keys would end, and the
// lock would not outlive the next server that fails.
func TestASlowerServerIsRenewedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const locks, span = 1000, 15 * time.Second
		clock := NewClock()
		near, far := &pipe{each: 10 * time.Microsecond}, &pipe{each: time.Millisecond}
		r := NewRenewer(RenewerOptions{Now: clock.Now, Servers: []Batcher{near, near, far}, Quorum: 2, ReplyTimeout: span / 4})
		defer r.Close()
		lost := keep(t, r, clock, "k", locks, span)
		time.Sleep(3 * span)
		far.Lock()
		defer far.Unlock()
		if far.sent < 7*locks || lost() != 0 {
			t.Errorf("the slower server got %d renewals of %d locks in three leases; %d are lost", far.sent, locks, lost())
		}
	})
}
