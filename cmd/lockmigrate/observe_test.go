package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
)

// oldClient takes turns on a key until ctx ends, as jedis-lock does, with a clock that is off. Each connection has an address of
// its own, by which --group host tells it from the others.
func oldClient(ctx context.Context, t *testing.T, s *redistest.Server, key string, lease, off, hold, think time.Duration) {
	conn := s.Conn()
	defer conn.Close()
	now := func() int64 { return time.Now().Add(off).UnixMilli() }
	value := func() string { return strconv.FormatInt(now()+lease.Milliseconds()+1, 10) }
	sleep := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	for ctx.Err() == nil {
		won, err := redis.Int(conn.Do("SETNX", key, value()))
		require.NoError(t, err)
		if won == 0 {
			read, _ := redis.String(conn.Do("GET", key))
			if expires, err := strconv.ParseInt(read, 10, 64); err == nil && expires < now() {
				before, _ := redis.String(conn.Do("GETSET", key, value()))
				won = map[bool]int{true: 1}[before == read]
			}
		}
		if won == 0 {
			sleep(50 * time.Millisecond)
			continue
		}
		time.Sleep(hold)
		_, err = conn.Do("DEL", key)
		require.NoError(t, err)
		sleep(think)
	}
}

// observeFive lets five old clients work, with clocks up to 6 s apart and a lease of 2 s, and observes them.
func observeFive(t *testing.T, keyOf func(client int) string, file string) string {
	s := redistest.Real(t)
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer func() { stop(); clients.Wait() }()
	for i := range 5 {
		clients.Go(func() {
			oldClient(ctx, t, s, keyOf(i), 2*time.Second, time.Duration(i-2)*3*time.Second, 60*time.Millisecond, 40*time.Millisecond)
		})
	}
	stdout, _ := operator{t, s.URL()}.runs(exitDone, "observe", "--for", "3s", "--lease", "2s", "--profile", file)
	return stdout
}

// TestSimulateKnowsWhoSharesKeys: five clients that never share a key do not overlap, in reality and simulated, however far apart
// their clocks are; the same five on one key do.
func TestSimulateKnowsWhoSharesKeys(t *testing.T) {
	t.Chdir(t.TempDir())
	out := observeFive(t, func(i int) string { return fmt.Sprint("order:", i) }, "apart.json")
	assert.Contains(t, out, "overlaps: 0\n")
	assert.Contains(t, out, "\nnext: lockmigrate stage init --namespace order --match 'order:*' --profile apart.json\n")
	code, out, _ := lockmigrateIn(t.Context(), false, "simulate", "--profile", "apart.json", "--runs", "1")
	assert.Equal(t, exitDone, code, out)
	assert.Contains(t, out, "5 clients")
	assert.Regexp(t, `(?m)^overlaps +none$`, out)

	out = observeFive(t, func(int) string { return "order:0" }, "shared.json")
	assert.NotContains(t, out, "overlaps: 0\n")
	code, out, _ = lockmigrateIn(t.Context(), false, "simulate", "--profile", "shared.json", "--runs", "1")
	assert.Equal(t, exitUnsafe, code, out)
	assert.Regexp(t, `(?m)^overlaps +[1-9][0-9,]*$`, out)
}

// TestSimulateRemembersFailovers: simulate --profile has the failovers that the profile's masters remember, unless the command line says
// otherwise; the line for replay names them.
func TestSimulateRemembersFailovers(t *testing.T) {
	t.Chdir(t.TempDir())
	hold := profile.Spread{N: 100, Quantiles: []profile.Quantile{{Share: 0, MS: 100}, {Share: 1, MS: 200}}}
	p := profile.Profile{
		Version: profile.Version, Windows: []profile.Window{{Seconds: 60, Masters: 1}}, Failovers: &profile.Failovers{Seen: 2, Seconds: 240},
		Clients: []profile.Client{{Name: "java", Kind: "legacy", Dialect: "jedis-ms", Connections: 1, AtOnce: 1, SkewKnown: true,
			Uses: []profile.Use{{Family: "order", LeaseMS: 30_000, LeaseFrom: "given", Acquired: 100, Hold: hold, Own: profile.Own{Keys: 1, Acquired: 100}}}}},
		Families: []profile.Family{{Name: "order", Keys: 1}},
	}
	file, err := os.Create("fleet.json")
	require.NoError(t, err)
	require.NoError(t, p.Write(file))
	require.NoError(t, file.Close())
	for _, c := range []struct {
		flags      []string
		note, have string
	}{
		{nil, "with failovers: the masters remember 2 in 4 minutes; --failover-every 0 leaves them out", "failovers "},
		{[]string{"--failover-every", "0"}, "", ""},
		{[]string{"--outage", "1m"}, "too often for an outage of 1m0s", ""},
		{[]string{"--failover-every", "3m"}, "", "failovers "},
	} {
		code, out, errs := lockmigrateIn(t.Context(), false, append([]string{"simulate", "--profile", "fleet.json", "--runs", "1"}, c.flags...)...)
		assert.Equal(t, exitDone, code, out+errs)
		assert.Contains(t, errs, c.note, "%q", c.flags)
		assert.Equal(t, c.note != "", strings.Contains(errs, "failovers"), "%q: %s", c.flags, errs)
		assert.Equal(t, c.have != "", strings.Contains(out, "\nfailovers "), "%q: %s", c.flags, out)
	}
}

// TestObserveMerge observes the same fleet twice, merges the profiles and creates the namespace with the line that is printed.
func TestObserveMerge(t *testing.T) {
	t.Chdir(t.TempDir())
	s := redistest.Real(t)
	o := operator{t, s.URL()}
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer func() { stop(); clients.Wait() }()
	for i := range 3 {
		clients.Go(func() {
			oldClient(ctx, t, s, fmt.Sprint("lock:order:", i%2), 2*time.Second, 0, 20*time.Millisecond, 80*time.Millisecond)
		})
	}
	read := func(file string) (p profile.Profile) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &p))
		return p
	}
	for _, file := range []string{"a.json", "b.json"} {
		o.runs(exitDone, "observe", "--for", "1500ms", "--lease", "2s", "--match", "lock:order:*", "--profile", file)
	}
	out, _ := o.runs(exitDone, "observe", "merge", "b.json", "a.json", "--profile", "fleet.json")
	assert.Regexp(t, `^2 windows, 3(\.\d+)?s in all, 3 clients, written to fleet\.json\n`, out)
	a, b, both := read("a.json"), read("b.json"), read("fleet.json")
	require.Len(t, both.Clients, 3)
	for _, c := range both.Clients {
		var n int64
		for _, p := range []profile.Profile{a, b} {
			for _, one := range p.Clients {
				if one.Name == c.Name {
					n += one.Acquired()
				}
			}
		}
		assert.Equal(t, n, c.Acquired(), c.Name)
		assert.Positive(t, n)
	}
	require.Len(t, both.Families, 1)
	assert.EqualValues(t, 2, both.Families[0].Keys, "the same two keys in both windows")
	assert.Len(t, both.Families[0].Groups, 1, "two clients share one, the third has the other")

	_, line, _ := strings.Cut(out, "next: lockmigrate ")
	line, _, _ = strings.Cut(line, "\n")
	assert.Equal(t, "stage init --namespace order --profile fleet.json", line)
	o.runs(exitDone, append(shellWords(t, line), "--execute")...)
	out, _ = o.runs(exitDone, "stage", "--namespace", "order")
	assert.Contains(t, out, "dialect jedis-ms, shortest lease 1.8s, clock lag 1s")

	_, stderr := o.runs(exitFailed, "observe", "merge", "a.json", "a.json", "--profile", "c.json")
	assert.Contains(t, stderr, "two profiles are of the same time")
	_, stderr = o.runs(exitUsage, "observe", "merge", "a.json", "b.json")
	assert.Contains(t, stderr, "there is no file to write to")
	_, stderr = o.runs(exitUsage, "observe", "merge", "a.json", "none.json", "--profile", "c.json")
	assert.Contains(t, stderr, "none.json")
	assert.NoFileExists(t, "c.json")
	o.runs(exitUsage, "observe", "merge", "a.json")
}
