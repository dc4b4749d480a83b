package profile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func old(change ...func(c *Client)) Client {
	c := Client{Name: "java-1", Kind: "legacy", Dialect: "jedis-ms", Connections: 1, AtOnce: 1, SkewKnown: true, SkewMS: 100, SkewErrorMS: 20,
		Uses: []Use{{Family: "lock.#", LeaseMS: 30_000, LeaseFrom: "fleet"}}}
	for _, f := range change {
		f(&c)
	}
	return c
}

func TestOldClients(t *testing.T) {
	p := Profile{Version: Version, Windows: []Window{{Seconds: 600}}, Clients: []Client{
		old(),
		old(func(c *Client) {
			c.Name, c.Pause = "java-2", SpreadOf([]time.Duration{400 * time.Millisecond}, 1, 400*time.Millisecond)
			c.Uses = append(c.Uses, Use{Family: "report", LeaseMS: 20_000, LeaseFrom: "fleet"})
		}),
		old(func(c *Client) { c.Name, c.SkewMS = "java-3", -1200 }),
		{Name: "go", Kind: "modern", Connections: 1, AtOnce: 1, Uses: []Use{{Family: "lock.#", LeaseMS: 5}}}, // not an old client: its TTL is nobody's lease
	}}
	o, err := p.OldClients()
	require.NoError(t, err)
	assert.Equal(t, "jedis-ms", o.Dialect)
	assert.Equal(t, 18*time.Second, o.Shortest, "20 s less 10 %")
	assert.Equal(t, 1800*time.Millisecond, o.ClockLag, "1.2 s and 20 ms of error and half a second, in tenths")
	assert.Equal(t, 800*time.Millisecond, o.CommandDelay, "twice 400 ms")
	assert.Equal(t, 30*time.Second, o.Longest, "the longer lease")
	assert.Len(t, o.Why, 5)
	assert.Contains(t, o.Why[1], "java-2")
	assert.Contains(t, o.Why[2], "java-3")
}

// Clocks that are ahead, and a fleet without takeovers, leave the defaults.
func TestOldClientsDefaults(t *testing.T) {
	o, err := Profile{Version: Version, Clients: []Client{old(func(c *Client) { c.SkewMS = 5000 })}}.OldClients()
	require.NoError(t, err)
	assert.Equal(t, time.Second, o.ClockLag)
	assert.Equal(t, 250*time.Millisecond, o.CommandDelay)
	assert.Contains(t, o.Why[3], "no takeover was seen")
}

// bounded is a lease that what waiters did bounds.
func bounded(from string, lease, low, high float64) func(c *Client) {
	return func(c *Client) {
		c.Uses[0].LeaseFrom, c.Uses[0].LeaseMS, c.Uses[0].LeaseLowMS, c.Uses[0].LeaseHighMS = from, lease, low, high
	}
}

// A lease that is only bounded gives the careful ends: the shortest lease, and the clock that is the farthest behind.
func TestOldClientsOfBoundedLeases(t *testing.T) {
	for _, from := range []string{"round", "waits"} {
		p := Profile{Version: Version, Clients: []Client{old(bounded(from, 4000, 3000, 4500), func(c *Client) { c.SkewMS = -1000 })}}
		o, err := p.OldClients()
		require.NoError(t, err)
		assert.False(t, p.Guessed())
		assert.Equal(t, 2700*time.Millisecond, o.Shortest, "3 s less 10 %")
		assert.Equal(t, 2100*time.Millisecond, o.ClockLag, "1 s and 0.5 s for the longest lease, 20 ms of error and half a second, in tenths")
		assert.Contains(t, o.Why[1], "3s of java-1, which is between 3s and 4.5s by what its waiters did")
	}
}

// What a window did not show is named, and never guessed.
func TestOldClientsNotShown(t *testing.T) {
	for name, c := range map[string]struct {
		clients []Client
		notSeen []string
		want    string
	}{
		"nobody":       {nil, nil, "no client of the old scheme"},
		"two dialects": {[]Client{old(), old(func(c *Client) { c.Name, c.Dialect = "py", "redispy-float" })}, nil, "jedis-ms (java-1), redispy-float (py)"},
		"lease":        {[]Client{old(), old(func(c *Client) { c.Name, c.Uses[0].LeaseMS = "quick", 0 })}, nil, "the lease of quick"},
		"a guess":      {[]Client{old(func(c *Client) { c.Uses[0].LeaseFrom = "round" })}, nil, "is a guess"},
		"one bound":    {[]Client{old(bounded("round", 4000, 3000, 0))}, nil, "is a guess"},
		"refuted":      {[]Client{old(bounded("given", 4000, 4100, 0))}, nil, "4s was given, and its waiters did what they do with one of 4.1s or more"},
		"clock":        {[]Client{old(func(c *Client) { c.SkewKnown = false })}, nil, "the clock of java-1"},
		"gaps":         {[]Client{old()}, []string{"all commands: a failover"}, "does not show all commands: a failover"},
	} {
		_, err := Profile{Version: Version, Clients: c.clients, NotSeen: c.notSeen}.OldClients()
		if assert.Error(t, err, name) {
			assert.Contains(t, err.Error(), c.want, name)
		}
	}
}
