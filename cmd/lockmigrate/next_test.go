package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// TestNextLeadsThrough migrates a fleet with nothing but the lines that next prints: from no record to a deleted one. The
// test does what a person does: it starts the Go services, and moves the old clients away, when next says so.
func TestNextLeadsThrough(t *testing.T) {
	s := redistest.Real(t)
	o := operator{t, s.URL()}
	t.Chdir(t.TempDir())
	impatient := strings.NewReplacer("--for 10m", "--for 2s", "--for LONGER", "--for 4s", "--longest-silence HOW-LONG", "--longest-silence 4s") // what a person thinks of

	leave := oldClients(t, s)
	defer leave()
	s.Do("SET", "lock.order.9", "1700000000123") // a client died long ago

	var lockers []compat.Locker
	var ran []string
	for range 20 {
		stdout, _ := o.runs(exitDone, "next", "--namespace", "orders", "--match", "lock.order.*", "--json")
		var on step
		require.NoError(t, json.Unmarshal([]byte(stdout), &on), stdout)
		t.Logf("%s\n  %s", stdout, on.Command)
		line, found := strings.CutPrefix(on.Command, "lockmigrate ")
		require.True(t, found, on.Command)
		switch {
		case strings.Contains(on.Do, "put package compat"):
			l, err := compat.New(s.Pool(), compat.Options{Namespace: "orders"})
			require.NoError(t, err)
			require.NoError(t, l.Ready(t.Context()))
			lockers = append(lockers, l)
		case strings.Contains(on.Do, "move the old clients"):
			leave()
		case on.Done && len(lockers) > 0:
			for _, l := range lockers {
				require.NoError(t, l.Do(t.Context(), "lock.order.1", func(context.Context) error { return nil }))
				stage, _, err := l.Stage()
				require.NoError(t, err)
				assert.Equal(t, lockmigrate.StageModern, stage)
				l.Close()
			}
			lockers = nil
		}
		ran = append(ran, strings.Join(strings.Fields(line)[:2], " "))
		o.runs(exitDone, shellWords(t, impatient.Replace(line))...)
		if strings.HasPrefix(line, "stage delete") {
			break
		}
	}
	assert.Equal(t, []string{
		"observe --match", "stage init", "stage --namespace", "stage advance", "observe --match", "verify --namespace", "sweep --match",
		"stage advance", "stage --namespace", "stage delete",
	}, ran)
	assert.Nil(t, s.Do("GET", "lock.order.9"), "the ghost is gone")
	again, _ := o.runs(exitDone, "next", "--namespace", "orders")
	assert.Contains(t, again, "was deleted at epoch 3", "nobody begins anew")
	stdout, _ := o.runs(exitDone, "stage", "list")
	assert.Equal(t, "no namespaces\n", stdout)
}

// TestNext takes each state of a migration, and what is said of it.
func TestNext(t *testing.T) {
	window := profile.Window{Seconds: 600, Masters: 1}
	enough := &profile.Profile{Version: profile.Version, Window: window, Match: []string{"lock.*"}, Clients: []profile.Client{{
		Name: "java", Kind: "legacy", Dialect: "jedis-ms", Connections: 1, AtOnce: 1, SkewKnown: true, Uses: []profile.Use{{
			Family: "lock.#", Lease: profile.Lease{LeaseMS: 30_000, LeaseFrom: "written"},
			Wait: profile.Spread{N: 10, Quantiles: []profile.Quantile{{Share: 0.5, MS: 100}, {Share: 0.9, MS: 1300}}},
		}},
	}}}
	doubtful := &profile.Profile{Version: profile.Version, Window: window, Match: []string{"lock.*"}, Clients: []profile.Client{{
		Name: "py", Kind: "legacy", Dialect: "redis-objects", Or: "redispy-float", Doubt: "it deletes without a look", Connections: 1, AtOnce: 1, SkewKnown: true,
		Uses: []profile.Use{{Family: "lock.#", Lease: profile.Lease{LeaseMS: 30_000, LeaseFrom: "written", LeaseDoubt: "it is 5s if its clock is right"}}},
	}}}
	thin := &profile.Profile{Version: profile.Version, Window: window, Match: []string{"lock.*"}}
	at := func(stage stages.Stage, members ...stages.Member) *stages.View {
		for i := range members {
			members[i].Stage, members[i].Lowest, members[i].Highest = stage, stage, stage
		}
		return &stages.View{Record: stages.Record{Namespace: "orders", Stage: stage, Epoch: 2, Patterns: []string{"lock.*"}, Dialect: "jedis-ms"}, Members: members}
	}
	certified := func(members ...stages.Member) *stages.View {
		v := at(stages.Modern, members...)
		v.Record.Note = "certificate: none seen in 90000 s until 2026-01-02T00:00:00Z, longest silence said to be 24h0m0s"
		return v
	}
	noted := func(note string, longest time.Duration) *stages.View {
		v := certified(stages.Member{ID: "a", Epoch: 2, Left: time.Second})
		v.Record.Note, v.Record.Longest = note+v.Record.Note, longest
		return v
	}
	lives, unfit := stages.Member{ID: "a", Epoch: 2, Left: time.Second}, stages.Member{ID: "b", Left: time.Second, Misfit: "another dialect"}
	whole := census.Summary{Complete: true}
	clean := &keysSeen{Summary: whole}
	expiring := func(in time.Duration) []census.Row {
		return []census.Row{{Look: census.Look{Key: []byte("lock.1"), TTL: census.NoTTL}, Finding: census.Finding{HasExpiry: true, Expires: census.Row{}.Now.Add(in)}}}
	}
	held := &keysSeen{Summary: whole, keys: 1, legacy: []legacyKind{{form: "jedis-ms", held: true, n: 1, first: expiring(time.Second)}}}
	endless := &keysSeen{Summary: whole, keys: 1, tokens: 1, endless: legacyKind{n: 1, first: expiring(0)}}
	flag := &keysSeen{Summary: whole, keys: 1, endless: endless.endless, legacy: []legacyKind{{form: "redis-objects", held: true, n: 1, first: endless.endless.first}}}
	dead := &keysSeen{Summary: whole, keys: 1, legacy: []legacyKind{{form: "jedis-ms", n: 1, first: expiring(-time.Hour)}}}
	ended := func(broke string) *verify.Saved { // after an hour of a day
		m := verify.Master{Addr: "a", RunID: "1", Version: "7.4.0", Looks: 10, Canary: 9, Ended: true, Moves: "no cluster", Named: true, CountsDenied: true, LogRead: true, Writes: 104}
		if broke != "" {
			m.Breaks = []string{broke}
		}
		return &verify.Saved{Options: verify.Options{Window: 26 * time.Hour}, Evidence: verify.Evidence{LookedSeconds: 3600, Masters: []verify.Master{m}}}
	}
	lost := &stages.Record{Patterns: []string{"lock.*"}, Longest: 25 * time.Hour, Stage: stages.Bridge}
	for name, c := range map[string]struct {
		s       standing
		command string
		says    string // in Do, InWay or Costs
		done    bool
	}{
		"nothing":        {standing{}, "lockmigrate observe --match 'PATTERN' --for 10m --profile orders.profile.json", "MONITOR sends a copy", false},
		"a thin profile": {standing{profile: thin}, "lockmigrate observe --match 'lock.*' --for 30m --profile orders.profile.json", "no client of the old scheme", false},
		"in doubt": {standing{profile: doubtful}, "lockmigrate observe --match 'lock.*' --for 30m --profile orders.profile.json",
			"redis-objects or redispy-float (it deletes without a look); give --dialect; the lease of py: 30s (it is 5s if its clock is right)", false},
		"measured":              {standing{profile: enough}, "lockmigrate stage init --namespace orders --match 'lock.*' --profile orders.profile.json --execute", "nothing changes for anybody", false},
		"legacy, no member":     {standing{view: at(stages.Legacy), keys: held}, "lockmigrate stage --namespace orders", `Options{Namespace: "orders"}`, false},
		"legacy, silent member": {standing{view: at(stages.Legacy, stages.Member{ID: "a", Left: -1}), keys: held}, "lockmigrate stage --namespace orders", "no member lives", false},
		"legacy, misfit":        {standing{view: at(stages.Legacy, lives, unfit), keys: held}, "lockmigrate stage --namespace orders", "correct or stop 1 member", false},
		"legacy, ready": {standing{view: at(stages.Legacy, lives), keys: held, profile: enough},
			"lockmigrate stage advance --namespace orders --to bridge --wait --execute", "when measured, java waited 100ms", false},
		"legacy, blocked": {standing{view: at(stages.Legacy, lives), keys: held, blockers: []stages.Blocker{{Member: "a", Why: "behind", Left: time.Second, Wait: -1}}},
			"lockmigrate stage advance --namespace orders --to bridge --wait --execute", "a is still on the previous epoch", false},
		"measured, refused": {standing{profile: enough, refused: unsafeError("choose others", "keys of two namespaces")}, "lockmigrate stage init --namespace orders --match 'lock.*' --profile orders.profile.json",
			"keys of two namespaces", false},
		"measured, after a record was lost": {standing{profile: enough, certificate: "x.json", known: lost}, "lockmigrate stage init --namespace orders --match 'lock.*' --profile orders.profile.json --longest-silence 25h0m0s --stage bridge --execute",
			"x.json is about a record of this name", false},
		"a record was lost": {standing{certificate: "x.json", known: lost},
			"lockmigrate stage init --namespace orders --match 'lock.*' --dialect NAME --shortest-lease HOW-LONG --longest-silence 25h0m0s --stage bridge --execute", "x.json is about a record of this name", false},
		"a record was lost when nobody was left to watch": {standing{profile: thin, reserved: true, known: &stages.Record{Patterns: []string{"lock.*"}}},
			"lockmigrate stage init --namespace orders --match 'lock.*' --dialect NAME --shortest-lease HOW-LONG --stage STAGE --execute", "its keys are reserved", false},
		"measured on every key": {standing{profile: &profile.Profile{Version: profile.Version, Window: window, Clients: enough.Clients}}, "lockmigrate stage init --namespace orders --match 'PATTERN' --profile orders.profile.json --execute",
			"nothing changes for anybody", false},
		"bridge, a value without a TTL": {standing{view: at(stages.Bridge, lives), keys: endless}, "lockmigrate sweep --match 'lock.*' --tokens", "verify takes each for a lock that is held: lock.1", false},
		"bridge, silent member":         {standing{view: at(stages.Bridge, stages.Member{ID: "a", Left: -1}), keys: clean}, "lockmigrate stage --namespace orders", "no member lives", false},
		"bridge, a certificate of the future": {standing{view: at(stages.Bridge, lives), keys: clean, certificate: "x.json", certErr: verify.ErrFuture},
			"lockmigrate next --namespace orders", "remove x.json", false},
		"bridge, a verify that was ended and has seen clients": {standing{view: at(stages.Bridge, lives), keys: clean, saved: &verify.Saved{Evidence: verify.Evidence{Seen: []verify.Client{{Addr: "10.0.0.7:4711", Evidence: "MONITOR: it sent SETNX"}}}}},
			"lockmigrate verify --namespace orders --longest-silence HOW-LONG --for LONGER --monitor --out orders.certificate.json", "10.0.0.7:4711: MONITOR: it sent SETNX", false},
		"bridge, certified by a file of any name": {standing{view: at(stages.Bridge, lives), keys: clean, certificate: "it's $(mine).json", server: " --redis redis://a"},
			`lockmigrate stage advance --namespace orders --to modern --certificate 'it'\''s $(mine).json' --wait --execute --redis redis://a`, "forgotten legacy client", false},
		"modern, changing over": {standing{view: at(stages.Modern, stages.Member{ID: "a", Epoch: 1, Left: time.Second}), keys: clean}, "lockmigrate stage --namespace orders", "1 of 1 members change over", false},
		"modern, an old client": {standing{view: at(stages.Modern, lives), keys: held}, "lockmigrate stage rollback --namespace orders --to bridge --wait --execute", "an old client locks at stage modern", false},
		"modern, a flag":        {standing{view: at(stages.Modern, lives), keys: flag}, "lockmigrate sweep --match 'lock.*' --tokens", "delete the others", false},
		"bridge, old clients":   {standing{view: at(stages.Bridge, lives), keys: held}, "lockmigrate observe --match 'lock.*' --for 10m", "old clients hold 1 lock", false},
		"bridge, quiet": {standing{view: at(stages.Bridge, lives), keys: clean},
			"lockmigrate verify --namespace orders --longest-silence HOW-LONG --for LONGER --monitor --out orders.certificate.json", "you have to state", false},
		"bridge, old clients that hold nothing now": {standing{view: at(stages.Bridge, lives), keys: clean, profile: enough},
			"lockmigrate verify --namespace orders --longest-silence HOW-LONG --for LONGER --monitor --out orders.certificate.json", "Move the 1 old client that orders.profile.json names (docs/runbook.md, step 4). Then prove that none is left", false},
		"bridge, a certificate that is too old": {standing{view: at(stages.Bridge, lives), keys: clean, certificate: "x.json", certErr: assert.AnError},
			"lockmigrate verify --namespace orders --longest-silence HOW-LONG --for LONGER --monitor --out orders.certificate.json", assert.AnError.Error(), false},
		"bridge, a certificate that has seen clients": {standing{view: at(stages.Bridge, lives), keys: clean, certificate: "x.json", certErr: verify.ErrVerdict, seen: []verify.Client{
			{Addr: "10.0.0.7:4711", Name: "billing", Evidence: "MONITOR: it sent SETNX (3)", Keys: []string{"lock.1"}},
			{Evidence: "census: a legacy value was written within the window", Keys: []string{"lock.2"}},
			{Addr: "host-1", Name: "id-1", Evidence: "a member of the namespace that runs stage legacy, or holds a lock of it"},
		}}, "lockmigrate verify --namespace orders --longest-silence HOW-LONG --for LONGER --monitor --out orders.certificate.json",
			"10.0.0.7:4711 billing: MONITOR: it sent SETNX (3) on \"lock.1\". Put a sidecar beside this service (docs/sidecar.md), or port it\n" +
				"nobody was named: census: a legacy value was written within the window on \"lock.2\". lockmigrate observe while it works names the client\n" +
				"host-1 id-1: a member of the namespace that runs stage legacy, or holds a lock of it. Restart this Go service", false},
		"bridge, a verify that was ended": {standing{view: at(stages.Bridge, lives), keys: clean, saved: ended("")},
			"lockmigrate verify --resume orders.certificate.json.state", "ended after 1h0m0s of 26h0m0s", false},
		"bridge, a verify that runs": {standing{view: at(stages.Bridge, lives), keys: clean, saved: ended(""), running: true},
			"lockmigrate next --namespace orders", "looked for 1h0m0s of 26h0m0s", false},
		"bridge, a verify that was ended and cannot come to anything": {standing{view: at(stages.Bridge, lives), keys: clean, saved: ended("its counters were reset")},
			"lockmigrate verify --namespace orders --longest-silence HOW-LONG --for LONGER --monitor --out orders.certificate.json", "you have to state", false},
		"bridge, certified, an old state": {standing{view: at(stages.Bridge, lives), keys: clean, certificate: "x.json", saved: ended("")},
			"lockmigrate stage advance --namespace orders --to modern --certificate x.json --wait --execute", "forgotten legacy client", false},
		"bridge, certified, ghosts": {standing{view: at(stages.Bridge, lives), keys: dead, certificate: "x.json"},
			"lockmigrate sweep --match 'lock.*' --ghost-after 1m --execute", "nobody takes it over", false},
		"bridge, certified": {standing{view: at(stages.Bridge, lives), keys: clean, certificate: "x.json"},
			"lockmigrate stage advance --namespace orders --to modern --certificate x.json --wait --execute", "forgotten legacy client", false},
		"modern, ghosts":  {standing{view: at(stages.Modern, lives), keys: dead}, "lockmigrate sweep --match 'lock.*' --ghost-after 1m --execute", "dead old clients", false},
		"modern, members": {standing{view: certified(lives), keys: clean}, "lockmigrate stage --namespace orders", "certificate: none seen in 90000 s until 2026-01-02T00:00:00Z, longest silence said to be 24h0m0s. The record has 1 member", true},
		"modern, nobody":  {standing{view: certified(), keys: clean}, "lockmigrate stage delete --namespace orders --execute", "no way back", true},
		"modern, by force": {standing{view: at(stages.Modern, lives), keys: clean}, "lockmigrate verify --namespace orders --longest-silence HOW-LONG --for LONGER --monitor --out orders.certificate.json",
			"inconclusive: an old client that is idle holds nothing, and nobody has shown that none is left", false},
		"modern, by force of a word": {standing{view: noted("forced: ", time.Hour), keys: clean}, "lockmigrate verify --namespace orders --for 1h3m --monitor --out orders.certificate.json", "inconclusive", false},
		"modern, and a longer silence since": {standing{view: noted("", 25*time.Hour), keys: clean}, "lockmigrate verify --namespace orders --for 26h15m --monitor --out orders.certificate.json",
			"longest silence said to be 24h0m0s", false},
		"modern, a certificate that does not count": {standing{view: at(stages.Modern, lives), keys: clean, certificate: "x.json", certErr: verify.ErrNamespace},
			"lockmigrate verify --namespace orders --longest-silence HOW-LONG --for LONGER --monitor --out orders.certificate.json", "another epoch", false},
		"modern, seen since": {standing{view: noted("", time.Hour), keys: clean, certificate: "x.json", certErr: verify.ErrVerdict, seen: []verify.Client{{Evidence: "MONITOR"}}},
			"lockmigrate verify --namespace orders --for 1h3m --monitor --out orders.certificate.json", "x.json has seen old clients", false},
		"modern, a verify sees one now": {standing{view: noted("", time.Hour), keys: clean, running: true, saved: &verify.Saved{Evidence: verify.Evidence{Seen: []verify.Client{{Evidence: "MONITOR"}}}}},
			"lockmigrate next --namespace orders", "a verify is looking", false},
		"modern, by force, proven later": {standing{view: at(stages.Modern, lives), keys: clean, certificate: "x.json"}, "lockmigrate stage --namespace orders", "x.json. The record has 1 member", true},
		"modern, by force, nobody":       {standing{view: at(stages.Modern), keys: clean}, "lockmigrate stage --namespace orders", "no member lives", false},
		"keys not readable":              {standing{view: at(stages.Bridge, lives), keys: &keysSeen{Summary: census.Summary{Complete: true, Unread: 3}}, certificate: "x.json"}, "lockmigrate doctor --match 'lock.*'", "3 keys could not be read", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.s
			s.namespace, s.profileFile = "orders", "orders.profile.json"
			if s.profile != nil {
				s.old, s.oldErr = s.profile.OldClients()
			}
			if s.view != nil {
				s.keysErr = s.keys.modernCan(s.view.Record.Patterns)
			}
			on := s.next()
			assert.Equal(t, c.command, on.Command)
			assert.Contains(t, on.Do+"\n"+strings.Join(append(on.InWay, on.Costs...), "\n"), c.says)
			assert.Equal(t, c.done, on.Done)
			assert.NotEmpty(t, on.Read)
		})
	}
}

// TestNextOfAPage: each pattern has its flag, so that the line runs as it stands on the page.
func TestNextOfAPage(t *testing.T) {
	assert.Equal(t, "lockmigrate next --namespace NAME --match 'lock.order.*' --match 'lock.bill.*'", nextOf([]string{"lock.order.*", "lock.bill.*"}))
	assert.Equal(t, "lockmigrate next --namespace NAME --match 'PATTERN'", nextOf(nil))
}

// A profile from before the present stage speaks of waits that were, as after a rollback.
func TestNextSaysHowOldItsFiguresAre(t *testing.T) {
	measured := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for since, want := range map[time.Time]string{
		measured.Add(time.Hour):  "orders.profile.json, watched for 10m00s, last on 2026-03-01, before the present stage",
		measured.Add(-time.Hour): "orders.profile.json, watched for 10m00s, last on 2026-03-01",
	} {
		s := standing{profileFile: "orders.profile.json", profile: &profile.Profile{Window: profile.Window{Start: measured, Seconds: 600}},
			view: &stages.View{Record: stages.Record{Epoch: 3, Since: since}}}
		assert.Equal(t, want, s.measured()[0])
	}
}

// TestALookHasOneSize: what a look keeps of a million legacy values is how many of each kind, and the first of them by name.
func TestALookHasOneSize(t *testing.T) {
	t.Parallel()
	const many = 100_000
	seen := &keysSeen{Summary: census.Summary{Complete: true}}
	key := []byte("lock.000000")
	row := &census.Row{Look: census.Look{Key: key, TTL: census.NoTTL}}
	row.Format, row.Dialects = "expiry-ms", []string{"jedis-ms"}
	for i := range many {
		copy(key[5:], fmt.Sprintf("%06d", (i*7919)%many)) // in no order
		row.State = census.Ghost
		if i%4 == 0 {
			row.State = census.Held
		}
		seen.add(row)
	}
	assert.Equal(t, "100,000 keys: 100,000 jedis-ms, 25,000 of them held", seen.String())
	kept := 0
	for _, kind := range seen.legacy {
		kept += len(kind.first)
	}
	assert.LessOrEqual(t, kept, 2*mostNamed)
	assert.ErrorContains(t, seen.modernCan([]string{"lock.*"}), "legacy values stand on 100,000 keys, and at stage modern nobody takes them over: lock.000000 (no expiry), lock.000001 (no expiry), lock.000002 (no expiry) and 99,997 more")
	assert.NoError(t, seen.speak("jedis-ms"))
	assert.ErrorContains(t, seen.speak("redis-doc"), "100,000 of 100,000 legacy values on these keys are not of dialect redis-doc but jedis-ms: lock.000000, lock.000001, lock.000002 and 99,997 more")
}

// The flags that name a namespace's keys are for a shell.
func TestMatchFlags(t *testing.T) {
	assert.Equal(t, ` --match 'lock.*' --match 'o'\''brien:\[*' --match '\xff?'`, matchFlags([]string{"lock.*", `o'brien:\[*`, "\xff?"}))
}

// TestNewestCertificate: one of another epoch, or of another server's record, stands aside, whenever it ended.
func TestNewestCertificate(t *testing.T) {
	t.Chdir(t.TempDir())
	record := stages.Record{Namespace: "orders", Epoch: 4, Since: time.UnixMilli(4)}
	for i, name := range []string{"b.json", "a.json", "c.json"} {
		f, err := os.Create(name)
		require.NoError(t, err)
		c := verify.Certificate{Format: verify.Format, Evidence: verify.Evidence{Ended: time.UnixMilli(int64(i)), Namespace: &verify.Namespace{Name: "orders", Epoch: record.Epoch, Since: record.Since}}}
		if i == 2 {
			c.Evidence.Namespace.Since = time.UnixMilli(5)
		}
		require.NoError(t, c.Write(f))
		require.NoError(t, f.Close())
	}
	newest, _ := newestCertificate(record)
	assert.Equal(t, "a.json", newest)
	record.Epoch = 5
	newest, _ = newestCertificate(record)
	assert.Equal(t, "c.json", newest, "one that cannot help says why not")
}
