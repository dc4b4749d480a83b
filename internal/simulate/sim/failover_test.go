package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/session"
)

// TestAFailoverLosesTheLastMoments: a replica that is behind takes over, as with Sentinel. In every scheme a holder whose write
// was lost may meet another. A token lock is exclusive again when that holder is through. A blind DEL of the old code goes on
// to free the lock of the next. Behind a sidecar, a grant whose DEL the failover lost may keep the lock for one lease more.
func TestAFailoverLosesTheLastMoments(t *testing.T) {
	const mostHeld, lease = 500 * time.Millisecond, 10 * time.Second
	first, second := protocol.Instant(20*time.Second), protocol.Instant(50*time.Second)
	for scheme := range session.Scheme(session.Schemes) {
		t.Run(scheme.String(), func(t *testing.T) {
			f := legacyFleet(2)
			f.Until = 90 * time.Second
			f.Faults = []Fault{{At: first, Kind: Failover, Client: -1, By: 300 * time.Millisecond}, {At: second, Kind: Failover, Client: -1, By: 300 * time.Millisecond}}
			within := lease
			for i := range f.Clients {
				c := &f.Clients[i]
				c.Scheme, c.Lease, c.Think, c.Member.Release = scheme, lease, Uniform(0, 2*time.Second), c.Dialect.Release
				c.Settle, c.Grace = 50*time.Millisecond, 500*time.Millisecond
				switch scheme {
				case session.Bridge, session.Modern:
					c.Queue, c.Renew, c.Lease, c.Claim = true, time.Second, 3*time.Second, time.Second
					within = mostHeld + 100*time.Millisecond
				case session.Sidecar:
					c.Behind, c.Renew = c.Name, time.Second
				case session.GoLegacy:
					c.Member.Release, c.Renew = protocol.ReleaseCompare, 3*time.Second
				}
			}
			var overlaps, late int64
			w := World{Trace: func(r *Record) {
				switch r.Kind {
				case Overlaps:
					overlaps++
					since := r.At.Sub(first)
					if r.At >= second {
						since = r.At.Sub(second)
					}
					require.Positive(t, since, "an overlap before any failover")
					require.Less(t, since, within, "an overlap that no failover explains")
				case Enters:
					if r.At > second.Add(2*lease) {
						late++
					}
				}
			}}
			var lost int64
			for seed := range uint64(20) {
				late = 0
				r := w.Run(f, seed)
				lost += r.Hazards[LostUpdate]
				require.Positive(t, late, "seed %d: nobody gets the lock any more", seed)
				require.Zero(t, r.Hazards[FenceDisorder])
			}
			require.Positive(t, lost)
			require.Positive(t, overlaps, "no failover lost a lock that is held: the test shows nothing")
		})
	}
}
