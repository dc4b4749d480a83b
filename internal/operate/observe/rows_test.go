package observe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// turns is a host's connection that takes and releases a key again and again. Its clock is ahead.
func turns(opts Options, server, addr, key string, n int, ahead, hold time.Duration, begin time.Duration) *Observer {
	tp := newTape(opts)
	tp.o.server = server
	tp.wait(begin)
	for range n {
		tp.run(addr, "SETNX", key, tp.ms(30*time.Second+ahead+time.Millisecond)) // the dialect adds one
		tp.wait(hold)
		tp.run(addr, "DEL", key)
	}
	tp.o.hazard(event{At: tp.at, Hazard: "clobber", Key: traffic.Key{Name: key}})
	tp.o.Finish()
	return tp.o
}

// What one host does on two masters: one row by host, two by connection, with the hold times of both. Each offset is against the clock of
// its own server, so the error bar covers both.
func TestRowsOfTwoMasters(t *testing.T) {
	watched := func(group Group) observers {
		opts := Options{Group: group, Lease: 30 * time.Second}
		return observers{
			turns(opts, "m1:1", "10.0.0.1:5", "lock:a:1", 3, 100*time.Millisecond, time.Second, time.Minute),
			turns(opts, "m2:1", "10.0.0.1:5", "lock:b:1", 5, 108*time.Millisecond, 3*time.Second, 0),
		}
	}
	one := watched(ByHost).report()
	require.Len(t, one.Clients, 1)
	row := one.Clients[0]
	assert.Empty(t, row.Server)
	assert.Equal(t, 2, row.Connections)
	assert.EqualValues(t, 8, row.Acquired)
	assert.InDelta(t, 3001, row.HoldP50MS, 1)
	assert.Equal(t, []string{"lock:b:#", "lock:a:#"}, row.Keys)
	assert.GreaterOrEqual(t, *row.SkewMS+*row.SkewErrorMS, 108.0)
	assert.LessOrEqual(t, *row.SkewMS-*row.SkewErrorMS, 101.0)
	assert.Equal(t, epoch.Add(time.Millisecond).Time(), one.Started)
	assert.EqualValues(t, 16, one.Commands)
	assert.Equal(t, map[string]int64{"clobber": 2}, one.Hazards)

	two := watched(ByAddr).report() // the same port to two servers is two connections
	require.Len(t, two.Clients, 2)
	assert.Equal(t, "m2:1", two.Clients[0].Server, "who acquired more comes first")
	assert.Equal(t, "m1:1", two.Clients[1].Server)
	assert.Len(t, watched(ByName).report().Clients, 2, "connections without a name stay apart")

	named := watched(ByName)
	for _, o := range named {
		o.Name("10.0.0.1:5", Peer{Name: "orders"})
	}
	require.Len(t, named.report().Clients, 1)
	assert.Empty(t, named.report().Clients[0].Server)

	alone := watched(ByAddr)[:1].report()
	assert.Empty(t, alone.Clients[0].Server)
}

// A profile of two masters has one window. A key that both have, as one took the other's place, counts once.
func TestProfileOfTwoMasters(t *testing.T) {
	opts := Options{Group: ByHost, Lease: 30 * time.Second}
	first := turns(opts, "m1:1", "10.0.0.1:5", "lock:1", 5, 0, time.Second, 0)
	second := turns(opts, "m2:1", "10.0.0.2:5", "lock:1", 5, 0, time.Second, time.Minute)
	other := turns(opts, "m3:1", "10.0.0.2:6", "lock:2", 5, 30*time.Millisecond, time.Second, 0)
	p := observers{first, second, other}.profile()
	require.NoError(t, p.Validate())
	require.Len(t, p.Windows, 1)
	assert.Equal(t, profile.Window{Start: epoch.Add(time.Millisecond).Time(), Seconds: 65.009, Masters: 3, Commands: 30, LockCommands: 30}, p.Windows[0])
	require.Len(t, p.Clients, 2)
	for _, c := range p.Clients {
		if c.Name == "10.0.0.2" {
			assert.Equal(t, 2, c.Connections)
			assert.EqualValues(t, 10, c.Use("lock:#").Acquired)
			assert.EqualValues(t, 1, c.Use("lock:#").Own.Keys)
		}
	}
	require.Len(t, p.Families, 1)
	assert.EqualValues(t, 2, p.Families[0].Keys)
	require.Len(t, p.Families[0].Groups, 1)
	assert.EqualValues(t, 1, p.Families[0].Groups[0].Keys)

	opts.Group = ByAddr
	p = observers{turns(opts, "m1:1", "10.0.0.1:5", "lock:1", 5, 0, time.Second, 0), turns(opts, "m2:1", "10.0.0.1:5", "lock:2", 5, 0, time.Second, 0)}.profile()
	require.Len(t, p.Clients, 2)
	assert.Equal(t, "10.0.0.1:5 at m1:1", p.Clients[0].Name)
}
