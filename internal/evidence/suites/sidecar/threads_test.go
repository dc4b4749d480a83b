package sidecar

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// TestThreads has several clients of one service behind one sidecar, as threads of it are. redis-py 2.7.6 writes whole seconds: they all write
// one text. The locks of SET NX PX are taken and given back as a script does it.
func TestThreads(t *testing.T) {
	for _, stage := range []stages.Stage{stages.Legacy, stages.Bridge, stages.Modern} {
		for _, c := range []struct {
			name, dialect string
			kind          holders.Kind
		}{{"redis-py 2.7.6", "redispy-float", holders.RedisPy27}, {"SET NX PX", "none", holders.PySetNXPX}} {
			if stage == stages.Legacy && c.kind == holders.PySetNXPX {
				continue // nothing is translated
			}
			t.Run(stage.String()+" "+c.name, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, stage)
				p := s.sidecar("report", c.dialect, 0)
				member := s.of(c.kind, p.url(), 0)
				members := []holders.Member{member, member, member}
				if stage != stages.Legacy {
					members = append(members, s.goMember())
				}
				report := s.run(members, 120, nil)
				t.Log(report)
				assert.Equal(t, 1, report.Inside, redistest.Violated)
				assert.Zero(t, report.Overlaps)
			})
		}
	}
}

// TestLosersBesideSidecars has clients that write no time, directly and behind a sidecar: two are never inside. A loser's value over a token that the
// service holds is deleted with it. Over one that is kept for the service's next attempt nobody deletes it, see docs/sidecar.md, "What can it not do?": such
// a key is deleted here, as an operator does. One that is dead for any other reason fails the test.
func TestLosersBesideSidecars(t *testing.T) {
	t.Parallel()
	s := newSite(t, stages.Bridge)
	p := s.sidecar("report", "redispy-float", 0)
	forever := func(url string) holders.Member {
		return func() *holders.Holder {
			return holders.Start(t, holders.RedisPy, url, holders.Arg("book", s.book.Addr))
		}
	}
	working, stop := context.WithCancel(t.Context())
	defer stop()
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	defer stop()
	sweeping.Go(func() { s.revive(working) })
	report := s.run([]holders.Member{forever(s.server.URL()), forever(s.server.URL()), forever(p.url()), forever(p.url())}, 100, nil)
	t.Log(report)
	assert.Equal(t, 1, report.Inside, redistest.Violated)
	assert.Zero(t, report.Overlaps)
}

// revive deletes the lock when nobody has had a turn for three seconds, which is six hundred times a hold.
func (s *site) revive(ctx context.Context) {
	last, since := "", time.Now()
	for lifetime.Sleep(ctx, 100*time.Millisecond) == nil {
		turns := fmt.Sprint(s.book.Do("GET", "lock:fleet:referee:turns"))
		if turns != last {
			last, since = turns, time.Now()
		}
		if turns != "<nil>" && time.Since(since) > 3*time.Second {
			value, names := fmt.Sprint(s.server.Do("GET", "lock:fleet")), protocol.CompanionsOf("lock:fleet")
			// A loser's text over a token that was kept for the service: it has neither a TTL nor a guard. Nothing else may hold a key for ever.
			assert.Equal(s, "2147483649.0 -1 0\n", fmt.Sprintln(value, s.server.Do("PTTL", "lock:fleet"), s.server.Do("EXISTS", names.Guard)), "what keeps everybody out")
			s.server.Do("DEL", "lock:fleet", names.Guard, names.Queue, "{lock:fleet}:sidecar")
			s.Logf("dead, and deleted after %s turns: %s", turns, value)
			since = time.Now()
		}
	}
}
