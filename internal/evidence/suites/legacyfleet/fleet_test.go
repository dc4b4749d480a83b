// Package legacyfleet lets Go members lock beside the real Java and Python holders, one fleet for each
// dialect that has real holders, with members killed while they hold the lock.
package legacyfleet

import (
	"context"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
)

func TestMain(m *testing.M) {
	makers := map[string]holders.Maker{}
	for _, d := range legacy.Dialects() {
		makers["go-"+d.String()] = goMember(d)
	}
	holders.ServeIfAsked(makers)
	redistest.Main(m, redistest.Redis, redistest.Java, redistest.Python)
}

type taker struct{ *legacy.Locker }

func (t taker) Acquire(ctx context.Context, key string) (func(context.Context) error, error) {
	lock, err := t.Locker.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}

func goMember(d legacy.Dialect) holders.Maker {
	return func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
		locker, err := legacy.New(pool, legacy.Options{Dialect: d, Lease: holders.Millis(args, "lease", 0)})
		return taker{locker}, err
	}
}

const (
	acquisitions = 500
	// Long beside a turn of a few milliseconds, so that a machine under load does not make a holder
	// overrun; short enough to wait out after each kill.
	lease = 3 * time.Second
)

func TestFleets(t *testing.T) {
	ofKind := func(k holders.Kind, url string) holders.Member {
		return func() *holders.Holder {
			return holders.Start(t, k, url, holders.Arg("lease", lease), holders.Arg("wait", 10*time.Second))
		}
	}
	ofGo := func(d legacy.Dialect, url string) holders.Member {
		return func() *holders.Holder { return holders.StartGo(t, "go-"+d.String(), url, holders.Arg("lease", lease)) }
	}
	for _, c := range []struct {
		dialect legacy.Dialect
		kinds   []holders.Kind // of the members that are not Go
		kills   []int          // indexes of members; those from len(kinds) on are Go
	}{
		{legacy.JedisMS, []holders.Kind{holders.JedisLock, holders.JedisLock, holders.Article, holders.Article}, []int{0, 4, 2}},
		{legacy.JedisUUID, []holders.Kind{holders.JedisUUID, holders.JedisUUID, holders.JedisUUID}, []int{0, 3, 1}},
		{legacy.RedisPyFloat, []holders.Kind{holders.RedisPy, holders.RedisPy, holders.RedisPy}, []int{0, 3, 1}},
	} {
		t.Run(c.dialect.String(), func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t)
			fleet := holders.Fleet{
				T: t, Server: server, Key: "lock.fleet", Turns: acquisitions, Kills: c.kills,
				Hold: 2 * time.Millisecond, Limit: 3 * time.Minute,
			}
			for _, k := range c.kinds {
				fleet.Members = append(fleet.Members, ofKind(k, server.URL()))
			}
			for range 3 {
				fleet.Members = append(fleet.Members, ofGo(c.dialect, server.URL()))
			}
			report := fleet.Run()
			t.Log(report)
			assert.GreaterOrEqual(t, report.Turns, acquisitions)
			assert.Equal(t, 1, report.Inside, redistest.Violated)
			assert.Zero(t, report.Overlaps)
			assert.Equal(t, len(c.kills), report.Kills, "each killed while it held, each taken over")
			assert.Empty(t, report.Errors)
			for i, n := range report.ByMember {
				assert.Positive(t, n, "member %d got turns", i)
			}
		})
	}
}
