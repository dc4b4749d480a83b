package driver

import (
	"fmt"
	"runtime"
	"time"
)

// watch keeps the watchdog going while there is something to wait for. Called with mu held.
func (k *link) watch() {
	if !k.ticking {
		k.ticking = true
		k.timer.Reset(k.server.owner.opts.ReplyTimeout / ticks)
	}
}

// look is the watchdog: it counts ticks, so that no call has to read a clock.
func (k *link) look() {
	if k.late() {
		k.fail(fmt.Errorf("no reply within %v", k.server.owner.opts.ReplyTimeout))
	}
}

// How long a read looks for a reply: one caller, or several on one processor, for about what it takes to send a thread to sleep
// and to wake it; several on several processors longer, because they go on meanwhile.
const lookAlone, lookShared = 40 * time.Microsecond, 100 * time.Microsecond

// due tells a read that found nothing how long it pays to look again, if a reply is on its way.
func (k *link) due() time.Duration {
	runtime.Gosched() // callers that the last replies woke may have something to write
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.head == k.next, k.crowd > 64: // more find the next replies there, and have no processor to spare
		return 0
	case k.procs > 1 && k.crowd > 1:
		return lookShared
	}
	return lookAlone
}

// late tells that no reply has come for too long though one is due, and sets the timer again. As long as
// replies come, a long pipeline may take its time.
func (k *link) late() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return false
	}
	k.tick++
	switch {
	case k.head != k.tail && k.tick-max((*k.slot(k.head)).tick, k.heard) > ticks:
		return true
	case k.head != k.tail:
		k.timer.Reset(k.server.owner.opts.ReplyTimeout / ticks)
	case k.ticking:
		k.ticking = false
		k.timer.Reset(k.server.owner.opts.Ping)
	default:
		k.ping()
	}
	return false
}

// ping asks whether the connection lives; without a reply the watchdog ends it. Called with mu held.
func (k *link) ping() {
	k.pushOrphan("PING")
	k.watch()
	k.rouse()
}
