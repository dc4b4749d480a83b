package sidecar

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
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

// TestLosersBesideSidecars has clients that write no time, directly and behind a sidecar: a loser's value over a token is deleted with it, and the key
// is never dead.
func TestLosersBesideSidecars(t *testing.T) {
	t.Parallel()
	s := newSite(t, stages.Bridge)
	p := s.sidecar("report", "redispy-float", 0)
	forever := func(url string) holders.Member {
		return func() *holders.Holder {
			return holders.Start(t, holders.RedisPy, url, holders.Arg("book", s.book.Addr))
		}
	}
	report := s.run([]holders.Member{forever(s.server.URL()), forever(s.server.URL()), forever(p.url()), forever(p.url())}, 400, nil)
	t.Log(report)
	assert.Equal(t, 1, report.Inside, redistest.Violated)
	assert.Zero(t, report.Overlaps)
}
