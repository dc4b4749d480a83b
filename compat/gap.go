package compat

import "github.com/lockmigrate/lockmigrate/internal/client/waiting"

// gap is what a waiter knows of the gap for legacy clients that it waits in: whether it has listened to the key
// for so long that a legacy client would have been heard. The zero value knows nothing.
//
// What it has not heard was not there, but for two moments: before its first question of the gap has arrived, and
// after the server has told it of a change and before it reads that. The first is a twentieth of a gap at most,
// both are about a round trip in practice. A legacy client that comes and goes in one of them has had its turn.
type gap struct {
	whole bool   // listened to, from the number of stirs on
	since uint64 // the stirs then
	asked uint64 // the stirs before the last question, and
	could bool   // whether every later one was to be heard then
}

// asks is called before each question.
func (g *gap) asks(turn *waiting.Turn) { g.asked, g.could = turn.Stirs() }

// quiet tells that nobody has touched the key in the gap.
func (g *gap) quiet(turn *waiting.Turn) bool {
	stirs, listening := turn.Stirs()
	return g.whole && listening && stirs == g.since
}

// listenToGap takes the answer to a question, and tells that the next question is to follow at once: the first
// one of a gap mostly goes over a connection that is not listened to.
func (w *wait) listenToGap(next look) bool {
	g := &w.gap
	switch {
	case !next.gap || !g.could:
		*g = gap{}
	case w.watch.Listened() && !g.whole:
		g.since, g.whole = g.asked, next.early
	case !w.watch.Listened():
		*g = gap{}
		if next.before == 0 {
			w.watch.Listen()
			return true
		}
	}
	return false
}
