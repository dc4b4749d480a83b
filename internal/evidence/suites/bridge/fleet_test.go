// Package bridge lets Go bridge holders lock beside the real Java and Python holders: fleets with
// members killed inside, clocks that are off, and stages that change under load.
package bridge

import (
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

func TestMain(m *testing.M) {
	holders.ServeIfAsked(map[string]holders.Maker{
		"compat": func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
			o, err := options(pool, args)
			if err != nil {
				return nil, err
			}
			locker, err := compat.New(pool, o)
			if err != nil {
				return nil, err
			}
			return holders.TakerOf(locker.Acquire), nil
		},
		"modern": func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
			locker, err := modern.New(pool, modern.Options{TTL: time.Second, FenceTTL: time.Minute})
			if err != nil {
				return nil, err
			}
			return holders.TakerOf(locker.Acquire), nil
		},
	})
	redistest.Main(m, redistest.Redis, redistest.Java, redistest.Python)
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
	o.YieldAfter = holders.Millis(args, "yield", 0)
	o.YieldAtMost = holders.Millis(args, "yieldmost", 0)
	if o.Namespace != "" {
		return o, nil
	}
	var err error
	if stage, _ := stages.Parse(args["stage"]); args["stage"] != "" && stage != compat.Bridge {
		o.Namespace, err = redistest.InStage(pool, stage, args["dialect"], lease)
		return o, err
	}
	if name := args["dialect"]; name != "" {
		o.Dialect, err = legacy.ParseDialect(name)
	}
	if o.Dialect == legacy.JedisUUID { // every acquisition settles: the delay is what it costs
		o.CommandDelay = 60 * time.Millisecond
	}
	return o, err
}

func ofKind(t *testing.T, k holders.Kind, url string) holders.Member {
	return func() *holders.Holder {
		return holders.Start(t, k, url, holders.Arg("lease", lease), holders.Arg("wait", 10*time.Second))
	}
}

// withPoll is ofKind for the kinds that wait by default for a second between two tries.
func withPoll(t *testing.T, k holders.Kind, url string) holders.Member {
	return func() *holders.Holder {
		return holders.Start(t, k, url, holders.Arg("lease", lease), holders.Arg("wait", 10*time.Second), holders.Arg("poll", 20*time.Millisecond))
	}
}

// ofJavaBridge is the Java reference of the bridge, whose TTL is the lease of its command line. It does
// not renew by itself, so the TTL is long beside a turn.
func ofJavaBridge(t *testing.T, url string) holders.Member {
	return func() *holders.Holder {
		return holders.Start(t, holders.Bridge, url, holders.Arg("lease", ttl), holders.Arg("wait", 10*time.Second), holders.Arg("poll", 20*time.Millisecond))
	}
}

func ofGo(t *testing.T, kind, url string, args ...string) holders.Member {
	return func() *holders.Holder {
		var options []holders.Option
		for _, a := range args {
			name, value, _ := strings.Cut(a, "=")
			options = append(options, holders.Arg(name, value))
		}
		return holders.StartGo(t, kind, url, options...)
	}
}

const acquisitions = 1000

// TestFleets (G1): bridge holders beside each fleet of real holders, and beside token holders, with
// holders of every kind killed inside.
func TestFleets(t *testing.T) {
	type fleet struct {
		name    string
		members func(url string) []holders.Member
		kills   []int
	}
	for _, c := range []fleet{
		{"jedis-ms", func(url string) []holders.Member {
			return []holders.Member{
				ofKind(t, holders.JedisLock, url), ofKind(t, holders.JedisLock, url), ofKind(t, holders.Article, url),
				ofGo(t, "compat", url), ofGo(t, "compat", url), ofGo(t, "compat", url, "stage=legacy"),
				ofJavaBridge(t, url),
			}
		}, []int{0, 3, 2, 5, 6}},
		{"redispy-float", func(url string) []holders.Member {
			return []holders.Member{
				ofKind(t, holders.RedisPy, url), ofKind(t, holders.RedisPy, url),
				ofGo(t, "compat", url, "dialect=redispy-float"), ofGo(t, "compat", url, "dialect=redispy-float"),
			}
		}, []int{0, 2}},
		{"jedis-uuid", func(url string) []holders.Member {
			return []holders.Member{
				ofKind(t, holders.JedisUUID, url), ofKind(t, holders.JedisUUID, url),
				ofGo(t, "compat", url, "dialect=jedis-uuid"), ofGo(t, "compat", url, "dialect=jedis-uuid"),
			}
		}, []int{0, 2}},
		{"tokens", func(url string) []holders.Member {
			return []holders.Member{
				withPoll(t, holders.SetNXPX, url), withPoll(t, holders.PySetNXPX, url), ofGo(t, "modern", url),
				ofGo(t, "compat", url), ofGo(t, "compat", url, "stage=modern"),
			}
		}, []int{0, 1, 2, 3, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t)
			report := holders.Fleet{
				T: t, Server: server, Key: "lock.fleet", Turns: acquisitions, Kills: c.kills,
				Hold: 2 * time.Millisecond, Limit: 4 * time.Minute, Members: c.members(server.URL()),
			}.Run()
			t.Log(report)
			assert.GreaterOrEqual(t, report.Turns, acquisitions)
			assert.Equal(t, 1, report.Inside, redistest.Violated)
			assert.Zero(t, report.Overlaps)
			assert.Equal(t, len(c.kills), report.Kills, "each killed while it held, each survived by the others")
			for i, n := range report.ByMember {
				assert.Positive(t, n, "member %d got turns", i)
			}
			told := 0
			for _, e := range report.Errors {
				// A clobber by a losing GETSET is told to the holder as a loss: it cannot know better.
				if e.Op == "release" && strings.Contains(e.Message, "displaced") {
					told++
					continue
				}
				assert.Fail(t, "a lock threw", "%+v", e)
			}
			t.Logf("clobbers told to their holders: %d", told)
		})
	}
}

// TestJavaReadsBridgeValues: no reader throws on a bridge value, and none takes it for expired.
func TestJavaReadsBridgeValues(t *testing.T) {
	server := redistest.Real(t)
	for _, c := range []struct {
		kind    holders.Kind
		dialect legacy.Dialect
	}{
		{holders.JedisLock, legacy.JedisMS}, {holders.Article, legacy.JedisMS}, {holders.JedisUUID, legacy.JedisUUID},
		{holders.RedisPy, legacy.RedisPyFloat},
	} {
		key := "lock." + c.kind.Name
		locker, err := compat.New(server.Pool(), compat.Options{Dialect: c.dialect})
		if err != nil {
			t.Fatal(err)
		}
		lock, err := locker.Acquire(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		h := holders.Start(t, c.kind, server.URL(), holders.Arg("lease", lease), holders.Arg("wait", 300*time.Millisecond))
		if e := h.Do("acquire %s", key); e.Event != "busy" {
			t.Errorf("%s beside a bridge holder: %+v", c.kind.Name, e)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Errorf("%s: release: %v", c.kind.Name, err)
		}
		if e := h.Do("acquire %s", key); e.Event != "acquired" {
			t.Errorf("%s after a bridge holder: %+v", c.kind.Name, e)
		}
		locker.Close()
	}
}
