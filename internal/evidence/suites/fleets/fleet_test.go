// Package fleets lets Go holders of every stage lock beside the real Java and Python holders: fleets with
// members killed inside, clocks that are off, and stages that change under load.
package fleets

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

func TestMain(m *testing.M) {
	holders.ServeIfAsked(map[string]holders.Maker{
		"compat": func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
			o, err := options(pool, args)
			if err != nil {
				return nil, err
			}
			return holders.Of(compat.New(pool, o))
		},
		"legacy": func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
			return holders.Of(legacy.New(pool, legacy.Options{Dialect: legacy.Dialect{Name: args["dialect"]}, Lease: lease}))
		},
		"modern": ofModern(modern.Options{TTL: ttl, FenceTTL: time.Minute}),
		"queue":  ofModern(modern.Options{TTL: lease, Yield: 20 * time.Millisecond}), // longer than the interval of those who poll
		"unfair": ofModern(modern.Options{TTL: lease, Unfair: true}),
		"redisson": func(pool *redis.Pool, _ map[string]string) (holders.Taker, error) {
			return holders.Of(redisson.New(pool, modern.Options{TTL: lease}))
		},
	})
	_ = flag.Set("test.parallel", "4") // they wait more than they work; the command line still decides
	redistest.Main(m, redistest.Redis, redistest.Java, redistest.Python)
}

func ofModern(o modern.Options) holders.Maker {
	return func(pool *redis.Pool, _ map[string]string) (holders.Taker, error) {
		return holders.Of(modern.New(pool, o))
	}
}

const (
	// Long beside a turn of a few milliseconds, so that a machine under load does not make a holder
	// overrun; short enough to wait out after each kill.
	lease = 3 * time.Second
	ttl   = time.Second
)

// options are those of every Go member; a holder's arguments choose the rest.
func options(pool *redis.Pool, args map[string]string) (compat.Options, error) {
	o := compat.Options{
		Namespace: args["namespace"], Member: args["id"], TTL: ttl, Lease: lease, ShortestLease: lease,
		ClockLag: 100 * time.Millisecond, CommandDelay: 500 * time.Millisecond,
	}
	if args["figures"] == "record" { // the member says nothing of the old clients
		o.ShortestLease, o.ClockLag, o.CommandDelay = 0, 0, 0
	}
	o.Yield = holders.Millis(args, "yield", 0)
	if o.Namespace != "" {
		return o, nil
	}
	var err error
	if name := args["stage"]; name == "legacy" || name == "modern" {
		stage, _ := stages.Parse(name)
		o.Namespace, err = redistest.InStage(pool, stage, args["dialect"], lease)
		return o, err
	}
	o.Dialect.Name = args["dialect"]
	if o.Dialect.Name == "jedis-uuid" { // every acquisition settles: the delay is what it costs
		o.CommandDelay = 60 * time.Millisecond
	}
	return o, err
}

// member is a kind of holder, a holders.Kind or the name of one in Go, and what its command line says beside the usual.
type member struct {
	kind any
	args []string
}

func of(kind any, args ...string) member { return member{kind, args} }

func (m member) at(t testing.TB, url string) holders.Member {
	return func() *holders.Holder {
		var options []holders.Option
		kind, old := m.kind.(holders.Kind)
		if old && kind != holders.Redisson {
			options = append(options, holders.Arg("lease", lease), holders.Arg("wait", 10*time.Second))
		}
		for _, a := range m.args {
			name, value, _ := strings.Cut(a, "=")
			options = append(options, holders.Arg(name, value))
		}
		if old {
			return holders.Start(t, kind, url, options...)
		}
		return holders.StartGo(t, m.kind.(string), url, options...)
	}
}

// TestFleets (G1): Go holders of each kind beside the real holders that they may meet, with holders of every kind killed inside.
func TestFleets(t *testing.T) {
	t.Parallel()
	legacyMS, legacyUUID, legacyPy := of("legacy", "dialect=jedis-ms"), of("legacy", "dialect=jedis-uuid"), of("legacy", "dialect=redispy-float")
	eager := "poll=20" // for kinds that wait by default for a second between two tries
	busy := []string{"poll=5", "wait=60000"}
	setNX, pySetNX := of(holders.SetNXPX, busy...), of(holders.PySetNXPX, busy...)
	redisson := of(holders.Redisson, "lease=3000")
	for _, c := range []struct {
		name    string
		turns   int
		each    int // at least; at stage legacy chance decides who gets turns, and each of those to be killed has one
		kills   []int
		members []member
	}{
		{"legacy, jedis-ms", 500, -1, []int{0, 4}, []member{of(holders.JedisLock), of(holders.JedisLock), of(holders.Article), of(holders.Article), legacyMS, legacyMS, legacyMS}},
		{"legacy, jedis-uuid", 500, -1, []int{0, 3}, []member{of(holders.JedisUUID), of(holders.JedisUUID), of(holders.JedisUUID), legacyUUID, legacyUUID, legacyUUID}},
		{"legacy, redispy-float", 500, -1, []int{0, 3}, []member{of(holders.RedisPy), of(holders.RedisPy), of(holders.RedisPy), legacyPy, legacyPy, legacyPy}},

		{"bridge, jedis-ms", 1000, 1, []int{0, 3, 2, 5, 6}, []member{of(holders.JedisLock), of(holders.JedisLock), of(holders.Article),
			of("compat"), of("compat"), of("compat", "stage=legacy"), of(holders.JavaMember, "lease=6000")}}, // a JVM cannot say that it stood still, and a third of that has to do until it is renewed
		{"bridge, redispy-float", 1000, 1, []int{0, 2}, []member{of(holders.RedisPy), of(holders.RedisPy), of("compat", "dialect=redispy-float"), of("compat", "dialect=redispy-float")}},
		{"bridge, jedis-uuid", 1000, 1, []int{0, 2}, []member{of(holders.JedisUUID), of(holders.JedisUUID), of("compat", "dialect=jedis-uuid"), of("compat", "dialect=jedis-uuid")}},
		{"bridge, tokens", 1000, 1, []int{0, 1, 2, 3, 4}, []member{of(holders.SetNXPX, eager), of(holders.PySetNXPX, eager), of("modern"), of("compat"), of("compat", "stage=modern")}},

		{"modern, queue", 2000, 50, []int{0, 3, 2}, []member{setNX, setNX, pySetNX, of("queue"), of("queue")}},
		{"modern, unfair", 1000, 1, []int{0, 3, 2}, []member{setNX, setNX, pySetNX, of("unfair"), of("unfair")}},
		{"modern, layout Redisson", 1000, 50, []int{2, 0}, []member{redisson, redisson, of("redisson"), of("redisson")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t)
			fleet := holders.Fleet{T: t, Server: server, Key: "lock.fleet", Turns: c.turns, Each: c.each, Kills: c.kills, Hold: 2 * time.Millisecond, Limit: 4 * time.Minute, Meanwhile: holders.Noise(server)}
			outstays := strings.HasSuffix(c.name, "Redisson") // its lease, which it does not renew, where it does not run for longer: one is stopped here
			if outstays {
				fleet.Stops, fleet.StopFor = []int{1}, lease+2*time.Second
			}
			fleet.Record = outstays || !strings.HasPrefix(c.name, "modern") // nobody sends GETSET in the others, and all renew
			for _, m := range c.members {
				fleet.Members = append(fleet.Members, m.at(t, server.URL()))
			}
			report := fleet.Run()
			t.Log(report)
			assert.GreaterOrEqual(t, report.Turns, c.turns)
			assert.Zero(t, report.Overlaps, redistest.Violated)
			if len(report.Told) == 0 {
				assert.Equal(t, 1, report.Inside, redistest.Violated)
				assert.False(t, outstays)
			}
			assert.Equal(t, len(c.kills), report.Kills, "each killed while it held, each survived by the others")
			for i, n := range report.ByMember {
				assert.GreaterOrEqual(t, n, c.each, "member %d", i)
			}
			leases := []time.Duration{lease}
			if strings.HasPrefix(c.name, "bridge") { // one of its members may be at stage legacy
				leases = []time.Duration{ttl, lease}
			}
			assert.Empty(t, report.Thrown(leases...), "a lock threw")
			t.Logf("clobbers told to their holders: %d", len(report.Errors))
		})
	}
}

func locker(t *testing.T, s *redistest.Server, o compat.Options) compat.Locker {
	t.Helper()
	l, err := compat.New(s.Pool(), o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestJavaClockBehind (G2): what a Java holder whose clock is behind writes looks expired before it is.
// The grace covers it; without enough of it the bridge would take the key from under its holder.
func TestJavaClockBehind(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	behind := 10 * time.Second
	for i, java := range []*holders.Holder{
		holders.Start(t, holders.JedisLock, server.URL(), holders.Clock(t, -behind), holders.Arg("lease", lease)),
		holders.Start(t, holders.Article, server.URL(), holders.Arg("clock", -behind), holders.Arg("lease", lease)),
	} {
		key := fmt.Sprint("lock.", i)
		if e := java.Do("acquire %s", key); e.Event != "acquired" {
			t.Fatalf("%+v", e)
		}
		careful := locker(t, server, compat.Options{ClockLag: behind + time.Second, TTL: time.Second})
		_, err := careful.TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired, "%s: a bridge client with a ClockLag that covers the lag", java)
		careless := locker(t, server, compat.Options{ClockLag: time.Second, TTL: time.Second})
		lock, err := careless.TryAcquire(t.Context(), key)
		if err != nil {
			t.Errorf("%s: with too small a ClockLag the bridge still waited: %v; nothing was shown about the grace", java, err)
			continue
		}
		_ = lock.Release(t.Context())
	}
}
