package observe_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/overlaps"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
)

// TestOverlapsAcrossProcesses lets two old clients do each other harm, each through a proxy of its own. Neither proxy sees an overlap.
// Together they tell those that MONITOR sees, with bounds around their length, although one process knows the clock badly at first.
func TestOverlapsAcrossProcesses(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	s := redistest.Real(t)
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	opts := observe.Options{Lease: 20 * time.Second, Match: func(key string) bool { return strings.HasPrefix(key, "lock:") }, Holds: 1000}
	var processes [2]*observe.Listening
	var addrs [2]string
	for i := range processes {
		clocks, err := observe.ClocksOf(t.Context(), end, s.Addr)
		require.NoError(t, err)
		if i == 1 { // it was measured over a slow connection, and is 20 ms off
			clocks.Ahead, clocks.Trip = clocks.Ahead+20*time.Millisecond, clocks.Trip+40*time.Millisecond
		}
		l := observe.Listen(opts, clocks)
		processes[i] = l
		addrs[i] = served(t, proxy.Passing, func() (net.Conn, error) {
			conn, err := net.Dial("tcp", s.Addr)
			if err != nil {
				return nil, err
			}
			return l.Tap(conn), nil
		})
	}
	slow, fast := two(t, addrs[0])[0], two(t, addrs[1])[0]
	do := func(on int, command string, args ...any) any {
		reply, err := []interface {
			Do(string, ...any) (any, error)
		}{slow, fast}[on].Do(command, args...)
		require.NoError(t, err)
		return reply
	}
	expiry := func(ahead time.Duration) string {
		return fmt.Sprint(time.Now().Add(20*time.Second + ahead).UnixMilli())
	}
	const apart = 150 * time.Millisecond
	monitor := watch(t, s, opts, func() {
		for i := range 4 { // one after the other
			for on := range 2 {
				key := fmt.Sprint("lock:turns:", i)
				require.EqualValues(t, 1, do(on, "SETNX", key, expiry(0)))
				do(on, "DEL", key)
				time.Sleep(apart)
			}
		}
		for i := range 4 { // the one ahead takes over a lock that is held
			key := fmt.Sprint("lock:harm:", i)
			require.EqualValues(t, 1, do(0, "SETNX", key, expiry(0)))
			do(1, "SETNX", key, expiry(time.Minute))
			do(1, "GET", key)
			do(1, "GETSET", key, expiry(time.Minute))
			time.Sleep(apart)
			do(0, "DEL", key)
			time.Sleep(apart)
			do(1, "DEL", key)
		}
	})
	var files []overlaps.Seen
	for _, l := range processes {
		clocks, err := observe.ClocksOf(t.Context(), end, s.Addr)
		require.NoError(t, err)
		l.Compare(clocks)
		l.Finish()
		assert.Zero(t, l.Report().OverlapCount, "one process sees no overlap")
		files = append(files, l.Holds())
	}
	require.EqualValues(t, 4, monitor.OverlapCount)
	found, err := overlaps.Find([]string{"a", "b"}, files)
	require.NoError(t, err)
	assert.Empty(t, found.NotSeen)
	assert.EqualValues(t, 16, found.Holds)
	assert.Zero(t, found.Undecided)
	require.Len(t, found.Overlaps, 4)
	assert.GreaterOrEqual(t, files[1].ClockErrorUS, int64(10_000))
	for i, o := range found.Overlaps {
		m := monitor.Overlaps[i]
		assert.Equal(t, m.Key, o.Name)
		assert.ElementsMatch(t, []string{m.First.Addr, m.Second.Addr}, []string{o.First.Addr, o.Second.Addr}, "who was first the clocks do not tell")
		assert.LessOrEqual(t, o.Least, m.MS+0.1, o.Name)
		assert.GreaterOrEqual(t, o.Most, m.MS-0.1, o.Name)
	}
}

// timed is a client that asks for the time, of a server whose clock is two seconds behind the capture's. The n-th packet is n
// milliseconds after the first.
func timed(client uint16, packet int) conversation {
	return conversation{client: client, pieces: []piece{
		{server: false, bytes: resp("TIME")},
		{server: true, bytes: resp("1699999998", fmt.Sprint(1000*packet+500))},
	}}
}

func heldIn(t *testing.T, most int, all ...conversation) overlaps.Seen {
	o := observe.New(observe.Options{Match: func(key string) bool { return strings.HasPrefix(key, "lock:") }, Lease: 30 * time.Second, Holds: most})
	seen, err := observe.ReadCapture(context.Background(), bytes.NewReader(pcap(t, nil, false, all...)), 6379, o, observe.Wire{})
	require.NoError(t, err)
	return seen.Holds
}

// TestCaptureKnowsItsClock: TIME in a capture tells how far its clock is from the server's, and a hold lies between the request and the
// reply of its commands. What the clock is not known for is left out, and said.
func TestCaptureKnowsItsClock(t *testing.T) {
	turns := conversation{client: 4000, pieces: turn()}
	// TIME's packets are 1 to 4, the turn's 5 to 18, and TIME's again 19 to 22.
	held := heldIn(t, 100, timed(5000, 3), turns, timed(5001, 21))
	require.Empty(t, held.NotSeen)
	require.Len(t, held.Holds, 2)
	at := func(packet int) time.Time {
		return time.Unix(1_699_999_998, 0).Add(time.Duration(packet) * time.Millisecond).UTC()
	}
	assert.InDelta(t, 500, held.ClockErrorUS, 10, "half of TIME's round trip")
	assert.WithinDuration(t, at(4), held.From, 510*time.Microsecond)
	assert.WithinDuration(t, at(22), held.To, 510*time.Microsecond)
	h := held.Holds[0]
	assert.Equal(t, overlaps.Key{Name: "lock:1"}, held.Keys[h.Key])
	assert.Equal(t, "10.0.0.1:4000", held.Clients[h.Client].Addr)
	assert.True(t, h.Ended)
	for bound, packet := range map[*int64]int{&h.Begin[0]: 7, &h.Begin[1]: 8, &h.End[0]: 9, &h.End[1]: 10} {
		assert.WithinDuration(t, at(packet), held.From.Add(time.Duration(*bound)*time.Microsecond), 510*time.Microsecond)
	}

	held = heldIn(t, 1, timed(5000, 3), turns, timed(5001, 21))
	assert.Equal(t, []string{"there were more holds than are kept: later ones are left out"}, held.NotSeen)
	assert.Len(t, held.Holds, 1)
	assert.WithinDuration(t, at(13), held.To, 510*time.Microsecond, "up to the second acquisition")

	held = heldIn(t, 100, turns)
	assert.Equal(t, []string{"the clock was not compared with the server's TIME, at the start and at the end"}, held.NotSeen)
	assert.Empty(t, held.Holds)
	assert.Zero(t, held.To)

	held = heldIn(t, 100, timed(5000, 3), turns)
	assert.Len(t, held.NotSeen, 1)
	assert.Empty(t, held.Holds, "nothing is known of the clock after the only TIME")
	assert.Equal(t, held.From, held.To)
}
