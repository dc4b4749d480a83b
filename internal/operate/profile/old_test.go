package profile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func old(change ...func(c *Client)) Client {
	c := Client{Name: "java-1", Kind: "legacy", Dialect: "jedis-ms", Connections: 1, AtOnce: 1, SkewKnown: true, SkewMS: 100, SkewErrorMS: 20,
		Uses: []Use{{Family: "lock.#", LeaseMS: 30_000, LeaseFrom: "written"}}}
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
			c.Uses = append(c.Uses, Use{Family: "report", LeaseMS: 20_000, LeaseFrom: "written"})
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

// A lease within bounds gives the careful ends: the shortest lease, and the clock that is the farthest behind. Of one that varies the clock
// is known.
func TestOldClientsOfBoundedLeases(t *testing.T) {
	for varies, want := range map[bool]struct {
		lag time.Duration
		why string
	}{
		false: {2100 * time.Millisecond, "3s of java-1, whose lease lies between 3s and 4.5s"}, // 1 s and 0.5 s for the longest lease, 20 ms of error and half a second, in tenths
		true:  {1600 * time.Millisecond, "3s of java-1, whose leases vary from 3s to 4.5s"},
	} {
		p := Profile{Version: Version, Clients: []Client{old(func(c *Client) {
			u := &c.Uses[0]
			u.LeaseMS, u.LeaseLeastMS, u.LeaseMostMS, u.LeaseVaries, c.SkewMS = 4000, 3000, 4500, varies, -1000
		})}}
		o, err := p.OldClients()
		require.NoError(t, err)
		assert.Equal(t, 2700*time.Millisecond, o.Shortest, "3 s less 10 %")
		assert.Equal(t, want.lag, o.ClockLag)
		assert.Contains(t, o.Why[1], want.why)
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
		"a doubt":      {[]Client{old(func(c *Client) { c.Uses[0].LeaseDoubt = "or it is 5s" })}, nil, "the lease of java-1: 30s (or it is 5s)"},
		"a trait":      {[]Client{old(func(c *Client) { c.Or, c.Doubt = "servicestack", "only one trait" })}, nil, "the dialect of java-1: jedis-ms or servicestack (only one trait); give --dialect"},
		"clock":        {[]Client{old(func(c *Client) { c.SkewKnown = false })}, nil, "the clock of java-1"},
		"gaps":         {[]Client{old()}, []string{"all commands: a failover"}, "does not show all commands: a failover"},
	} {
		_, err := Profile{Version: Version, Clients: c.clients, NotSeen: c.notSeen}.OldClients()
		if assert.Error(t, err, name) {
			assert.Contains(t, err.Error(), c.want, name)
		}
	}
}
