// Package waiting is how one process waits for locks on one server: who talks to the server, and what
// wakes it up.
//
// # The queue of the process
//
// Of all goroutines that wait for one key, one at a time talks to the server, the front; the others
// stand behind it, first in, first out. Enter returns when the caller is the front. The front leaves
// (Leave) when it has the lock or gives up, and the next one becomes the front at once: with a queue
// on the server it then takes its place there while the first still works. Cancelling Enter leaves the
// queue at once and wakes nobody but, if it was just becoming the front, the next one.
//
// # Waking
//
// The front sleeps in Wait until there is a reason to ask the server again: an Event. There are three
// sources, and the best that the server offers is used.
//
//   - Tracking. The hub has two connections to each server that somebody waits on: one for the front's
//     questions, with CLIENT TRACKING on, and a listener that the server's invalidations are redirected to. A key
//     that a command READS over the first (GET, PTTL or EXISTS, also inside a script) is watched from that
//     moment on, atomically with the reading: the next change to it, by any client and any command,
//     expiry included, is one Changed event; then the watch is over until the key is read again. So an
//     attempt that runs over Turn.Advance and reads the key arms its own alarm, and there is no moment
//     between "held" and "watching" in which a release could be missed. A caller that asks over another
//     connection uses a Watch.
//     The other kind of tracking, BCAST with prefixes, was not chosen: it tells every listener about
//     every write under the prefix, a renewal wakes everybody, prefixes must not overlap, and adding one
//     for a new key is a command more.
//   - Messages. Grants from the release script come over the listener's channel; so do the announcements
//     of other locks (Redisson's) that Subscribe asks for. This needs only pub/sub.
//   - A timer, always: Wait never lasts longer than it is told. Where there is no tracking, it never
//     lasts longer than Poll, with jitter. A lost message therefore costs time and nothing else.
//
// The two are connected by the first waiter, and closed when nobody has waited for 10 s. Both are pinged; when
// one of them breaks, both are replaced, and every front gets a Reset, because what happened in between is not
// known.
//
// # Failure
//
// While somebody waits on a server, there is a listener, or an attempt to connect is under way, or a timer is set
// for the next attempt; the pauses between failed attempts double from 100 ms to 6.4 s. Nobody waits for
// an attempt that is older than 500 ms: until there is a listener its questions go over Options.Runner, and it looks at the key
// once in Poll.
//
// In a cluster each master has its own two connections, so that one that hangs is nothing to those who wait on
// others. Where a key moves, it is listened for at its new master.
//
// # Use
//
//	turn, err := hub.Enter(ctx, key)
//	if err != nil { return err }            // the wait was cancelled
//	defer turn.Leave()
//	reply := protocol.Reply{}
//	for {
//		outcome, err := turn.Advance(ctx, machine, reply, abandoned)
//		...                                 // Done: return
//		event, err := turn.Wait(ctx, outcome.Step.Sleep)
//		if err != nil { return err }
//		reply = event.Reply()
//	}
package waiting
