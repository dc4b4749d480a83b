package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
)

// smallFleet writes a profile: three old clients that share two keys, with the given clocks in milliseconds.
func smallFleet(t *testing.T, lease time.Duration, clocks ...float64) string {
	t.Helper()
	between := func(low, high float64) profile.Spread {
		return profile.Spread{N: 50, Quantiles: []profile.Quantile{{Share: 0, MS: low}, {Share: 0.5, MS: (low + high) / 2}, {Share: 1, MS: high}}}
	}
	p := profile.Profile{
		Version: profile.Version, Match: []string{"lock:*"}, Failovers: &profile.Failovers{},
		Window: profile.Window{Start: time.Now().Add(-10 * time.Minute), Seconds: 600, Masters: 1, Commands: 5000, LockCommands: 4000},
	}
	group := profile.Group{Keys: 2}
	for i, clock := range clocks {
		p.Clients = append(p.Clients, profile.Client{
			Name: fmt.Sprintf("10.0.0.%d", i+1), Kind: "legacy", Dialect: "jedis-ms", Connections: 1, AtOnce: 1, SkewMS: clock, SkewErrorMS: 1, SkewKnown: true,
			PollMS: 100, Poll: between(100, 110), Pause: between(0.1, 2),
			Uses: []profile.Use{{
				Family: "lock:#", Lease: profile.Lease{LeaseMS: float64(lease.Milliseconds()), LeaseFrom: "written"}, Tries: 300, Acquired: 50,
				Hold: between(200, 600), Wait: between(1, 500), Think: between(100, 400),
			}},
		})
		group.Clients, group.Acquired = append(group.Clients, i), append(group.Acquired, 50)
	}
	p.Families = []profile.Family{{Name: "lock:#", Keys: 2, Groups: []profile.Group{group}}}
	file := filepath.Join(t.TempDir(), "fleet.json")
	var text bytes.Buffer
	require.NoError(t, p.Write(&text))
	require.NoError(t, os.WriteFile(file, text.Bytes(), 0o600))
	return file
}

// TestRehearse plays all acts on a real server: everybody works in each of them, nobody is beside a member, and nothing is left.
func TestRehearse(t *testing.T) {
	t.Parallel()
	s, other := redistest.Real(t), redistest.Real(t)
	html := filepath.Join(t.TempDir(), "rehearsal.html")
	code, out, errs := lockmigrateIn(t.Context(), false, "rehearse", smallFleet(t, 10*time.Second, 0, 300, -300), "--act", "2s", "--speed", "5", "--json", "--html", html, "--redis", s.URL(), "--new", other.URL())
	require.Equal(t, exitDone, code, "%s%s", out, errs)
	var r rehearsal
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	assert.True(t, r.Whole)
	assert.Equal(t, 3, r.Old)
	var names, steps []string
	for _, a := range r.Acts {
		names = append(names, a.Name+" "+a.Stage)
		if a.Command != "" {
			steps = append(steps, a.Command)
		}
		assert.Positive(t, a.Turns, a.Name)
		assert.Zero(t, a.Overlaps, "%s: the clocks are apart by less than the leases have left", a.Name)
		assert.Empty(t, a.Failures, a.Name)
		if assert.NotNil(t, a.ServerUS, a.Name) {
			assert.Positive(t, *a.MemoryBytes, a.Name)
		}
		assert.Equal(t, a.Like != "", a.Forecast != nil, a.Name)
	}
	assert.Equal(t, []string{"today legacy", "Go joins legacy", "bridge bridge", "all moved bridge", "modern modern", "way back bridge", "sidecars bridge", "both servers both", "other server new"}, names)
	assert.Equal(t, []string{
		"lockmigrate stage advance --namespace NAME --to bridge --wait --execute", "lockmigrate stage advance --namespace NAME --to modern --wait --execute",
		"lockmigrate stage rollback --namespace NAME --to bridge --wait --execute",
		"lockmigrate stage advance --namespace NAME-to-b --to both --wait --execute --redis NEW", "lockmigrate stage advance --namespace NAME-to-b --to new --wait --execute --redis NEW",
	}, steps)
	assert.EqualValues(t, 0, s.Do("DBSIZE"), "the server is empty again")
	assert.EqualValues(t, 0, other.Do("DBSIZE"), "and so is the other one")
	page, err := os.ReadFile(html)
	require.NoError(t, err)
	for _, want := range []string{"way back", "What was not rehearsed?", "stage rollback", "times as fast"} {
		assert.Contains(t, string(page), want)
	}
}

// TestRehearseShowsSkew: with clocks further apart than a lease has left, old clients meet in today's act, as the fleet itself does; a rehearsal
// that found nothing there would show nothing.
func TestRehearseShowsSkew(t *testing.T) {
	redistest.Need(t, redistest.Proofs) // it plays for 20 s
	t.Parallel()
	code, out, errs := lockmigrateIn(t.Context(), false, "rehearse", smallFleet(t, 10*time.Second, 0, 9900, -9900), "--act", "2s", "--speed", "10", "--json")
	var r rehearsal
	require.NoError(t, json.Unmarshal([]byte(out), &r), errs)
	require.NotEmpty(t, r.Acts)
	assert.Positive(t, r.Acts[0].Overlaps)
	if assert.NotNil(t, r.Acts[0].Forecast) {
		assert.Positive(t, r.Acts[0].Forecast.Low, "and forecast says so")
	}
	assert.Contains(t, r.NotDone[2], "no evidence", "the server within the program")
	assert.Nil(t, r.Acts[0].ServerUS)
	assert.Contains(t, []int{exitDone, exitUnsafe}, code, errs)
}
