package census

import (
	"context"
	"math/bits"
	"strconv"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
)

// done estimates how far a cursor has come. Redis goes through a hash table by counting its cursor up from
// the highest bit, so the reversed cursor is the fraction of the table that is behind it, whatever its size.
// On a server whose cursor once moves back under that reading, it means something else.
func (s *scanner) done(cursor string) float64 {
	n, err := strconv.ParseUint(cursor, 10, 64)
	if err != nil || s.behind < 0 {
		return s.behind
	}
	fraction := float64(bits.Reverse64(n)) / (1 << 64)
	if fraction < s.behind {
		fraction = -1
	}
	s.behind = fraction
	return fraction
}

// cost is what a page took the server: from when it was sent or, as pages overlap, from when the one before it
// was done; without the time that rows took to be written.
func (s *scanner) cost(p *page, finished time.Time) time.Duration {
	began := p.sent
	if finished.After(began) {
		began = finished
	}
	return time.Since(began) - s.emitted
}

// adapt makes pages larger while the server is quick and smaller when it is not. The way to the server and back
// does not count, and with a long one a part of it more, since it varies.
func (s *scanner) adapt(cost time.Duration) {
	cost -= s.roundTrip
	switch {
	case cost > slowPage+s.roundTrip/2:
		s.count = max(s.count/2, leastCount)
	case cost < quickPage+s.roundTrip/4:
		s.count = min(s.count*2, s.most)
	}
}

// mostCount is the largest page: a tenth of a second's keys where there is a limit.
func (o *Options) mostCount() int {
	if o.Rate <= 0 {
		return mostCount
	}
	return max(leastCount, min(o.Rate/10, mostCount))
}

// rate is how many things may happen in a second.
type rate struct {
	most int       // 0: no limit
	next time.Time // when it may go on
}

// take waits until n more things may happen.
func (r *rate) take(ctx context.Context, n int) error {
	if r.most <= 0 {
		return nil
	}
	now := time.Now()
	if r.next.Before(now) {
		r.next = now
	}
	r.next = r.next.Add(time.Duration(n) * time.Second / time.Duration(r.most))
	wait := r.next.Sub(now)
	if wait < time.Millisecond {
		return nil
	}
	return lifetime.Sleep(ctx, wait)
}
