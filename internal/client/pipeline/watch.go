package pipeline

import (
	"fmt"
	"runtime"
	"time"
)

// idle is how long the timer sleeps while nothing is under way.
func (k *link) idle() time.Duration {
	if k.server.owner.opts.Ping < 0 {
		return time.Hour
	}
	return k.server.owner.opts.Ping
}

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

// due tells a read that found nothing that a reply is on its way, and that it pays to look again. What was left to the reader is
// written before.
func (k *link) due() bool {
	k.mu.Lock()
	k.hooked, k.awake = true, true
	pays := k.crowd <= 16 // many find the next replies there, and have no processor to spare
	k.mu.Unlock()
	if !pays {
		return false
	}
	runtime.Gosched() // callers that the last replies woke may have something to write
	k.mu.Lock()
	// With half of the crowd at the server, what is queued waits for the next reply: it completes the other half. On several
	// processors that may come without a reply, and costs other goroutines' time.
	if k.procs > 1 || !k.few() || k.next-k.head < k.half() {
		k.flush()
		k.mu.Lock()
	}
	defer k.mu.Unlock()
	return k.head != k.next
}

// sleeps is told that a read is going to sleep. What was left to the reader is written.
func (k *link) sleeps() {
	k.mu.Lock()
	k.awake = false
	k.flush()
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
		k.timer.Reset(k.idle())
	default:
		if k.server.owner.opts.Ping > 0 {
			k.ping()
		}
	}
	return false
}

// ping asks whether the connection lives; without a reply the watchdog ends it. Called with mu held.
func (k *link) ping() {
	k.pushOrphan("PING")
	k.watch()
	k.rouse()
}
