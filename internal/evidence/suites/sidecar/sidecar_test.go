package sidecar

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
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
			var sidecars []*process
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
func (s *site) run(members []holders.Member, turns int, kills []int, victims ...*process) holders.Report {
	s.Helper()
	next := 1
	return holders.Fleet{
		T: s.T, Server: s.book, Key: "lock:fleet", Turns: turns, Kills: kills, Hold: 5 * time.Millisecond, Limit: 2 * time.Minute, Members: members,
		Meanwhile: func(n int) {
			if n%20 == 0 && len(kills) > 0 {
				s.noLockWithoutTTL()
			}
			if len(victims) >= next && n >= turns*next/(len(victims)+1) {
				victims[next-1].kill()
				victims[next-1].start()
				next++
			}
		},
	}.Run()
}
