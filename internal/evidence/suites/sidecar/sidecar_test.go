package sidecar

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Long beside a turn, short enough to wait out after a kill.
const lease = 3 * time.Second

// TestFleets: services of each dialect behind sidecars beside Go services, with client clocks 10 s apart, and kill -9 of services and of
// sidecars inside.
func TestFleets(t *testing.T) {
	for _, stage := range []stages.Stage{stages.Bridge, stages.Modern} {
		t.Run(stage.String(), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, stage)
			s.keepFor = 3 * time.Second // a DEL may be lost with a sidecar, and one service writes no time
			var members []holders.Member
			var sidecars []*holders.Sidecar
			for _, m := range []struct {
				kind          holders.Kind
				name, dialect string
				offset        time.Duration
			}{
				{holders.JedisLock, "billing", "", 0}, {holders.JedisLock, "stock", "", 10 * time.Second}, {holders.JedisUUID, "mail", "jedis-uuid", 0},
				{holders.RedisPy, "report", "redispy-float", -10 * time.Second}, {holders.SetNXUUID, "crawl", "none", 0},
				{holders.ArticleHA, "ship", "", 10 * time.Second}, // on Jedis 8
			} {
				member, p := s.behind(m.kind, m.name, m.dialect, m.offset)
				members, sidecars = append(members, member), append(sidecars, p)
			}
			members = append(members, s.goMember(), s.goMember())
			report := s.run(members, 200, []int{0, 3, 5, 6}, sidecars[1], sidecars[4])
			t.Log(report)
			assert.Equal(t, 1, report.Inside, redistest.Violated)
			assert.Zero(t, report.Overlaps)
			assert.Equal(t, 4, report.Kills)
		})
	}
}

// TestWithoutSidecars is the same with jedis-lock directly on the server: what the sidecars are for.
func TestWithoutSidecars(t *testing.T) {
	t.Parallel()
	s := newSite(t, stages.Modern)
	var members []holders.Member
	for _, offset := range []time.Duration{0, 10 * time.Second, -10 * time.Second} {
		members = append(members, s.of(holders.JedisLock, s.server.URL(), offset))
	}
	report := s.run(members, 60, nil)
	t.Log(report)
	assert.Positive(t, report.Overlaps, "nothing was shown")
}

// run lets a fleet take turns, and kills a sidecar now and then.
func (s *site) run(members []holders.Member, turns int, kills []int, victims ...*holders.Sidecar) holders.Report {
	s.Helper()
	next := 1
	return holders.Fleet{
		T: s.T, Server: s.book, Key: "lock:fleet", Turns: turns, Kills: kills, Hold: 5 * time.Millisecond, Limit: 2 * time.Minute, Members: members,
		Meanwhile: func(n int) {
			if n%20 == 0 && len(kills) > 0 {
				s.noLockWithoutTTL()
			}
			if len(victims) >= next && n >= turns*next/(len(victims)+1) {
				victims[next-1].Kill()
				victims[next-1].Start()
				next++
			}
		},
	}.Run()
}

// TestRestarts: real services hold locks without a time, and are at work while their sidecars are killed, ended and replaced. No lock ends
// while its service holds it, however long that says nothing, and each is free after its release.
func TestRestarts(t *testing.T) {
	for name, restart := range map[string]func(t *testing.T, p *holders.Sidecar){
		"killed":   func(_ *testing.T, p *holders.Sidecar) { p.Kill(); p.Start() },
		"ended":    func(t *testing.T, p *holders.Sidecar) { require.NoError(t, p.End()); p.Start() },
		"replaced": func(t *testing.T, p *holders.Sidecar) { require.NoError(t, p.Replace()) },
	} {
		for _, m := range []struct {
			kind    holders.Kind
			dialect string
		}{{holders.SetNXUUID, sidecar.DialectNone}, {holders.RedisPy, "redispy-float"}} {
			t.Run(name+", "+m.dialect, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, stages.Modern)
				s.lease, s.renewed = 0, 9*time.Second // the services write none
				billing, stock := s.sidecar("billing", m.dialect, 0), s.sidecar("stock", m.dialect, 0)
				service := s.of(m.kind, billing.URL(), 0)()
				require.Equal(t, "acquired", service.Do("acquire lock:fleet").Event)
				redistest.Await(t, "the list", func() bool {
					return s.server.Do("HGET", sidecar.ListKey("orders", "billing"), "lock:fleet") != nil
				})
				restart(t, billing)
				renewals, before := 0, int64(0)
				redistest.Await(t, "two renewals", func() bool {
					now, _ := s.server.Do("PTTL", "lock:fleet").(int64)
					if now > before {
						renewals++
					}
					before = now
					return renewals > 2 // the first is what was left
				})
				other, err := redis.Dial("tcp", stock.Addr)
				require.NoError(t, err)
				defer other.Close()
				taken, err := redis.Int(other.Do("SETNX", "lock:fleet", "another"))
				require.NoError(t, err)
				require.Zero(t, taken, redistest.Violated)
				service.Do("release lock:fleet")
				redistest.Await(t, "the lock", func() bool {
					taken, err := redis.Int(other.Do("SETNX", "lock:fleet", "another"))
					assert.NoError(t, err)
					return taken == 1
				})
				service.Kill()
			})
		}
	}
}

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
				member := s.of(c.kind, p.URL(), 0)
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

// TestLosersBesideSidecars has clients that write no time, directly and behind a sidecar: two are never inside, and a loser's value over a token that the
// service holds, or that is kept for its next attempt, does not keep everybody out for ever.
func TestLosersBesideSidecars(t *testing.T) {
	t.Parallel()
	s := newSite(t, stages.Bridge)
	p := s.sidecar("report", "redispy-float", 0)
	forever := func(url string) holders.Member {
		return func() *holders.Holder {
			return holders.Start(t, holders.RedisPy, url, holders.Arg("book", s.book.Addr))
		}
	}
	report := s.run([]holders.Member{forever(s.server.URL()), forever(s.server.URL()), forever(p.URL()), forever(p.URL())}, 100, nil)
	t.Log(report)
	assert.Equal(t, 1, report.Inside, redistest.Violated)
	assert.Zero(t, report.Overlaps)
}
