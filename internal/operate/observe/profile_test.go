package observe

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
)

// script writes lines as MONITOR does: at milliseconds, by a client, a command.
type recording struct{ strings.Builder }

func (r *recording) at(ms int64, client, command string, args ...any) {
	fmt.Fprintf(r, "%d.%06d [0 %s] %q", 1_700_000_000+ms/1000, ms%1000*1000, client, command)
	for _, a := range args {
		fmt.Fprintf(r, " %q", fmt.Sprint(a))
	}
	r.WriteString("\n")
}

// expiry is what a client writes at a time, with a clock that is off, for a lease of ten seconds.
func expiry(ms, off int64) int64 { return 1_700_000_000_000 + ms + off + 10_001 }

func (r *recording) profile(t *testing.T, opts Options) profile.Profile {
	t.Helper()
	o := New(opts)
	o.Keys.Scanning(0)
	o.Keys.Complete()
	require.NoError(t, ReadFile(context.Background(), strings.NewReader(r.String()), o))
	p := o.Profile()
	require.NoError(t, p.Validate())
	return p
}

// TestProfileOfTurns wants hold, think, wait, overruns, crashes and abandoned turns as they were recorded.
func TestProfileOfTurns(t *testing.T) {
	const a, b, c = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
	var r recording
	turn := func(at int64, who, key string, hold int64) {
		r.at(at, who, "SETNX", key, expiry(at, 0))
		r.at(at+hold, who, "DEL", key)
	}
	for n := range int64(10) { // each on a key of its own: held for 200 ms, idle for 800 ms
		turn(n*1000, a, "order:1", 200)
		turn(n*1000+300, b, "order:2", 200)
	}
	turn(10_000, c, "report", 10_700)                      // held for longer than its lease
	r.at(30_000, a, "SETNX", "order:3", expiry(30_000, 0)) // crashes
	r.at(39_000, b, "SETNX", "order:3", expiry(39_000, 0))
	r.at(39_001, b, "GET", "order:3")
	r.at(40_100, b, "SETNX", "order:3", expiry(40_100, 0))
	r.at(40_110, b, "GET", "order:3")
	r.at(40_130, b, "GETSET", "order:3", expiry(40_130, 0)) // takes over 130 ms after the lease
	r.at(41_130, b, "DEL", "order:3")
	r.at(42_000, c, "SETNX", "report", expiry(42_000, 0))
	r.at(60_000, c, "SETNX", "report", expiry(60_000, 0)) // it goes on without a DEL
	r.at(60_001, c, "GET", "report")
	r.at(60_002, c, "GETSET", "report", expiry(60_002, 0))
	r.at(61_000, c, "DEL", "report")
	r.at(70_000, b, "PING")
	p := r.profile(t, Options{Group: ByHost, Lease: 10_000_000_000})

	rows := map[string]profile.Client{}
	for _, row := range p.Clients {
		rows[row.Name] = row
	}
	require.Len(t, rows, 3)
	ua, ub, uc := rows["10.0.0.1"].Use("order:#"), rows["10.0.0.2"].Use("order:#"), rows["10.0.0.3"].Use("report")
	assert.EqualValues(t, 11, ua.Acquired)
	assert.EqualValues(t, 10, ua.Hold.N, "a crash has no hold time")
	assert.InDelta(t, 200, ua.Hold.At(0.5), 0.1)
	assert.EqualValues(t, 10, ua.Think.N)
	assert.InDelta(t, 800, ua.Think.At(0.5), 0.1)
	assert.EqualValues(t, 1, ua.Crashed)
	assert.Zero(t, ua.Open)
	assert.Equal(t, int64(1), ua.Own.Keys)
	assert.Equal(t, int64(10), ua.Own.Acquired)
	assert.EqualValues(t, 1, ub.Takeovers)
	assert.InDelta(t, 1130, ub.Wait.Most(), 0.1, "from its first try")
	assert.EqualValues(t, 1, rows["10.0.0.2"].Pause.N)
	assert.InDelta(t, 20, rows["10.0.0.2"].Pause.Most(), 0.1)
	assert.EqualValues(t, 3, uc.Acquired)
	assert.EqualValues(t, 1, uc.Overrun.N)
	assert.InDelta(t, 700, uc.Overrun.Most(), 0.1)
	assert.EqualValues(t, 1, uc.Hazards["overrun"])
	f := p.Families[0]
	assert.Equal(t, "order:#", f.Name)
	require.Len(t, f.Groups, 1, "order:3 alone was shared")
	assert.EqualValues(t, 1, f.Groups[0].Keys)
	assert.Equal(t, []int64{1, 1}, f.Groups[0].Acquired)
	assert.EqualValues(t, 1, uc.Left)
}

// TestProfileOfLostHolds wants a holder that was taken over counted with its whole hold, and the overlap with its cause.
func TestProfileOfLostHolds(t *testing.T) {
	const a, b = "10.0.0.1:1", "10.0.0.2:1"
	var r recording
	r.at(0, a, "SETNX", "lock:x", expiry(0, 0))
	r.at(9_000, b, "SETNX", "lock:x", expiry(9_000, 2_000)) // its clock is 2 s ahead
	r.at(9_001, b, "GET", "lock:x")
	r.at(9_002, b, "GETSET", "lock:x", expiry(9_002, 2_000))
	r.at(9_500, a, "DEL", "lock:x") // still within its lease, by the server's clock
	r.at(9_700, b, "DEL", "lock:x")
	r.at(10_000, a, "SETNX", "lock:x", expiry(10_000, 0))
	r.at(10_100, a, "DEL", "lock:x")
	p := r.profile(t, Options{Lease: 10_000_000_000})
	require.Len(t, p.Clients, 2)
	for _, c := range p.Clients {
		if c.Name == a {
			assert.EqualValues(t, 2, c.Uses[0].Hold.N)
			assert.InDelta(t, 9500, c.Uses[0].Hold.Most(), 0.1)
			assert.Zero(t, c.Uses[0].Overrun.N)
		} else {
			assert.EqualValues(t, 1, c.Uses[0].Hazards["early-takeover"])
			assert.InDelta(t, 2000, c.SkewMS, 20)
		}
	}
	assert.Equal(t, map[string]int64{"early-takeover": 1}, p.Families[0].Overlaps)
}

// TestProfileOfDrift wants the drift of a clock that runs 200 ppm fast, within its error.
func TestProfileOfDrift(t *testing.T) {
	var r recording
	for n := range int64(600) {
		at := n * 1000
		for i, ppm := range []int64{0, 200} {
			who := fmt.Sprintf("10.0.0.%d:1", i+1)
			delay := (n*7 + int64(i)) % 3
			r.at(at+delay, who, "SETNX", fmt.Sprint("lock:", i), expiry(at, at*ppm/1_000_000))
			r.at(at+delay+10, who, "DEL", fmt.Sprint("lock:", i))
		}
	}
	p := r.profile(t, Options{Lease: 10_000_000_000})
	require.Len(t, p.Clients, 2)
	for _, c := range p.Clients {
		want := 0.0
		if c.Name == "10.0.0.2:1" {
			want = 200
		}
		ppm, off, known := c.Drift()
		t.Log(c.Name, ppm, off, c.Clock)
		assert.True(t, known)
		assert.InDelta(t, want, ppm, off)
		assert.Less(t, off, 150.0)
	}
}

// TestProfileOfARestart kills a holder, which comes back over another connection of its host, takes its own old lock over and
// releases by GET and DEL: the dead hold is a crash, and has no hold time.
func TestProfileOfARestart(t *testing.T) {
	const before, after = "10.0.0.1:1", "10.0.0.1:2"
	seconds := func(ms int64) string { return fmt.Sprintf("%.3f", float64(1_700_000_000_000+ms)/1000) }
	var r recording
	r.at(0, before, "SETNX", "stock", seconds(3_000))
	r.at(3_100, after, "SETNX", "stock", seconds(6_100))
	r.at(3_101, after, "GET", "stock")
	r.at(3_102, after, "GETSET", "stock", seconds(6_100))
	r.at(3_500, after, "GET", "stock")
	r.at(3_501, after, "DEL", "stock")
	r.at(10_000, after, "PING")
	p := r.profile(t, Options{Group: ByHost, Lease: 3_000_000_000})
	require.Len(t, p.Clients, 1)
	assert.Equal(t, 2, p.Clients[0].Connections)
	assert.Equal(t, 1, p.Clients[0].AtOnce, "one after the other")
	u := p.Clients[0].Uses[0]
	assert.EqualValues(t, 1, u.Crashed)
	assert.EqualValues(t, 1, u.Hold.N)
	assert.InDelta(t, 399, u.Hold.Most(), 1)
}

// TestProfileOfARobbedRestart kills a holder, and another client deletes its lock. Its host's next process loses a lock of its
// own, finds that out by GET, and deletes nevertheless: that is the end of its own hold, and not of the dead one.
func TestProfileOfARobbedRestart(t *testing.T) {
	const before, after, other = "10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"
	seconds := func(ms int64) string { return fmt.Sprintf("%.3f", float64(1_700_000_000_000+ms)/1000) }
	var r recording
	r.at(0, before, "SETNX", "stock", seconds(3_000))
	r.at(500, other, "DEL", "stock")
	r.at(1_000, after, "SETNX", "stock", seconds(4_000))
	r.at(1_200, other, "DEL", "stock")
	r.at(1_300, other, "SETNX", "stock", seconds(4_300))
	r.at(1_400, after, "GET", "stock")
	r.at(1_401, after, "DEL", "stock")
	r.at(10_000, after, "PING")
	p := r.profile(t, Options{Group: ByHost, Lease: 3_000_000_000})
	for _, c := range p.Clients {
		if c.Name == "10.0.0.1" {
			assert.EqualValues(t, 1, c.Uses[0].Crashed)
			assert.EqualValues(t, 1, c.Uses[0].Hold.N)
			assert.InDelta(t, 400, c.Uses[0].Hold.Most(), 1)
		}
	}
}

// TestOnePool: a DEL over another connection of the same host is noted as what a pool does too; by host it is a release.
func TestOnePool(t *testing.T) {
	var r recording
	for n := range int64(3) {
		r.at(1000*n, "10.0.0.1:1", "SETNX", "stock", expiry(1000*n, 0))
		r.at(1000*n+100, "10.0.0.1:2", "DEL", "stock")
		r.at(1000*n+500, "10.0.0.1:2", "SETNX", "stock", expiry(1000*n+500, 0))
		r.at(1000*n+600, "10.0.0.1:1", "DEL", "stock")
	}
	events := func(group Group) []EventRow {
		o := New(Options{Group: group})
		o.Keys.Scanning(0)
		o.Keys.Complete()
		require.NoError(t, ReadFile(context.Background(), strings.NewReader(r.String()), o))
		return o.Report().Events
	}
	byAddr := events(ByAddr)
	require.NotEmpty(t, byAddr)
	assert.Contains(t, byAddr[0].Note, OnePool)
	assert.Empty(t, events(ByHost))
}

// TestOtherVersion: members with a library of another version send other scripts. They are known by keys and arguments. A lock that one
// hands to the other is no clobber.
func TestOtherVersion(t *testing.T) {
	const a, b = "10.0.0.1:1", "10.0.0.2:1"
	const va, vb = "7265780150708610257", "7523851644436283022"
	var r recording
	script := func(ms int64, who, digest, value string, args ...any) {
		r.at(ms, who, "EVALSHA", append([]any{digest, 4, "stock", "{stock}:guard", "{stock}:yield", "{stock}:queue", value}, args...)...)
	}
	for n := range int64(3) {
		at := 1000 * n
		script(at, a, "0123456789012345678901234567890123456789", va, 30000)
		r.at(at, "lua", "SET", "{stock}:guard", va, "PX", 30000)
		r.at(at, "lua", "SET", "stock", va, "PX", 30000)
		script(at+100, b, "0123456789012345678901234567890123456789", vb, 30000)
		r.at(at+100, "lua", "GET", "stock")
		script(at+200, a, "9876543210987654321098765432109876543210", va, 120)
		r.at(at+200, "lua", "SET", "stock", vb, "NX")
		r.at(at+200, "lua", "SET", "stock", vb, "PX", 3000)
		script(at+300, b, "9876543210987654321098765432109876543210", vb, 120)
		r.at(at+300, "lua", "DEL", "stock", "{stock}:guard")
	}
	o := New(Options{})
	o.Keys.Scanning(0)
	o.Keys.Complete()
	require.NoError(t, ReadFile(context.Background(), strings.NewReader(r.String()), o))
	report := o.Report()
	assert.Empty(t, report.Hazards)
	assert.Empty(t, report.Overlaps)
	require.Len(t, report.Clients, 2)
	for _, row := range report.Clients {
		assert.Equal(t, Bridge, row.Kind)
		assert.EqualValues(t, 3, row.Acquired)
	}
}

// TestProfileOfAHostsClocks: the stretches of two connections of one host overlap, and the readings of its clock are in order.
func TestProfileOfAHostsClocks(t *testing.T) {
	var r recording
	for at := int64(0); at < 12_000; at += 100 {
		for n, begins := range []int64{0, 3_000} {
			if at < begins {
				continue
			}
			delay := int64(3)
			if at == []int64{5_000, 7_900}[n] { // the largest sample of its stretch
				delay = 0
			}
			who, key := fmt.Sprintf("10.0.0.1:%d", n), fmt.Sprint("lock:", n)
			r.at(at, who, "SETNX", key, expiry(at, -delay))
			r.at(at+5, who, "DEL", key)
		}
	}
	p := r.profile(t, Options{Group: ByHost, Lease: 10_000_000_000})
	require.Len(t, p.Clients, 1)
	assert.GreaterOrEqual(t, len(p.Clients[0].Clock), 2)
}
