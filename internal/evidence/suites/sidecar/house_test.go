package sidecar

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// TestMovesHouse takes services that nobody changes from Redis 2.8.19 to Valkey 9.0.0: jedis-lock 1.0.0, and redis-py 2.7.6, whose locks are SETNX and GETSET.
// Each has a sidecar. The stage goes forth, back and forth while they work, the data moves by a dump, and services are killed inside their locks; sidecars are
// killed, stopped for longer than their lease, and cut off from Old and from New.
func TestMovesHouse(t *testing.T) {
	redistest.Need(t, redistest.Servers)
	for _, kind := range []holders.Kind{holders.JedisLock, holders.RedisPy27} {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			moveHouse(t, kind, map[bool]string{true: "jedis-ms", false: "redispy-float"}[kind == holders.JedisLock])
		})
	}
}

func moveHouse(t *testing.T, kind holders.Kind, dialect string) {
	turns, path, kills := 30, []stages.Stage{stages.Both, stages.New}, []int{0}
	if *long {
		turns, path, kills = 2500, slices.Repeat([]stages.Stage{stages.Both, stages.New, stages.Both, stages.Old}, 3), []int{0, 1, 2, 0, 1, 2}
		path = append(path, stages.Both, stages.New)
	}
	a, b := redistest.Of(t, "redis-2.8.19"), redistest.Of(t, "valkey-9.0.0")
	s := &site{T: t, server: b, book: redistest.Real(t), lease: 3 * time.Second}
	s.store = &stages.Store{Pool: b.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
	halves := &stages.Halves{}
	for pool, half := range map[*redis.Pool]*stages.Half{a.Pool(): &halves.Old, b.Pool(): &halves.New} {
		mark, err := stages.WriteMark(t.Context(), pool, "orders", 2*time.Second)
		require.NoError(t, err)
		half.Mark = mark
	}
	require.NoError(t, s.store.Init(t.Context(), stages.Record{Namespace: "orders", Patterns: []string{"lock:fleet"}, Handover: halves}))
	var members []holders.Member
	var sidecars []*holders.Sidecar
	var lines []*command // of the sidecars
	var links [][2]*redistest.Link
	var starting sync.Mutex // a service that starts finds its sidecar
	for _, name := range []string{"billing", "stock", "mail"} {
		ways := [2]*redistest.Link{redistest.NewLink(t, a.Addr), redistest.NewLink(t, b.Addr)}
		line := &command{Redis: ways[0].Addr, New: ways[1].Addr, DataOld: true, Name: name, Dialect: dialect}
		p := s.launch(line)
		lines = append(lines, line)
		members, sidecars, links = append(members, func() *holders.Holder {
			starting.Lock()
			defer starting.Unlock()
			return s.of(kind, p.URL(), 0)()
		}), append(sidecars, p), append(links, ways)
	}
	service, err := redis.Dial("tcp", sidecars[0].Addr)
	require.NoError(t, err)
	for i := range 100 {
		_, err := service.Do("SET", fmt.Sprint("data:", i), i)
		require.NoError(t, err)
	}
	_ = service.Close()

	faults, next := []func(p *holders.Sidecar, ways [2]*redistest.Link){
		func(p *holders.Sidecar, _ [2]*redistest.Link) {
			starting.Lock()
			defer starting.Unlock()
			p.Kill()
			p.Start()
		},
		func(p *holders.Sidecar, _ [2]*redistest.Link) { p.Hold(2500 * time.Millisecond)() },
		func(_ *holders.Sidecar, ways [2]*redistest.Link) { away(ways[0]) },
		func(_ *holders.Sidecar, ways [2]*redistest.Link) { away(ways[1]) },
	}, 0
	reached := map[stages.Stage]int{}
	r := holders.Fleet{
		T: t, Server: s.book, Key: "lock:fleet", Turns: turns, Each: turns / 60, Hold: 2 * time.Millisecond, Limit: 15 * time.Minute, Members: members, Kills: kills,
		Beside: func(after func(int)) {
			after(1)
			for i, to := range path {
				mover := stages.Mover{Store: s.store, Look: 50 * time.Millisecond}
				if !assert.NoError(t, mover.Run(t.Context(), to, func(stages.View, []stages.Blocker) {})) {
					return
				}
				reached[to]++
				if *long || i == 0 {
					victim := next % len(sidecars)
					faults[next%len(faults)](sidecars[victim], links[victim])
					next++
				}
				if to == stages.New && lines[0].DataOld {
					moveData(t, a, b)
					for i, p := range sidecars { // a second process beside the first, which drains
						lines[i].DataOld = false
						_ = p.Replace()
					}
				}
				if *long {
					time.Sleep(2 * time.Second)
				}
			}
		},
	}.Run()
	t.Logf("%s: %v; moves %v, faults %d", kind.Name, r, reached, next)
	assert.Equal(t, 1, r.Inside, redistest.Violated)
	assert.Zero(t, r.Overlaps)
	assert.Equal(t, len(kills), r.Kills)
	service, err = redis.Dial("tcp", sidecars[0].Addr)
	require.NoError(t, err)
	defer service.Close()
	got, err := redis.String(service.Do("GET", "data:99"))
	require.NoError(t, err)
	assert.Equal(t, "99", got)
	assert.Equal(t, int64(1), b.Do("EXISTS", "data:99"))
}

// away cuts a sidecar off for longer than its lease.
func away(way *redistest.Link) {
	way.Partition()
	time.Sleep(2500 * time.Millisecond)
	way.Cut()
	way.Heal()
}

// moveData copies all keys but the locks, as a dump would.
func moveData(t *testing.T, from, to *redistest.Server) {
	keys, err := redis.Strings(from.Do("KEYS", "data:*"), nil)
	assert.NoError(t, err)
	for _, key := range keys {
		to.Do("RESTORE", key, 0, from.Do("DUMP", key), "REPLACE")
	}
}
