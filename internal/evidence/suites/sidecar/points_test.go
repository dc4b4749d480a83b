package sidecar

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// others is what another client's lock is.
const others = "6000000000000000001"

// trip is one round trip of the translation, and what a fault in it leaves.
type trip struct {
	name   string
	script *scripts.Script
	own    bool   // on a connection of the sidecar itself
	beside bool   // ... without the client's doing: it sends its command until the round trip has come, and once more
	begins string // who holds the key before: service, other, or nobody
	send   []any
	reply  string // of the command, once it has acted
	ends   string // who holds the key then
}

// leased stands for a time in a trip's command that is a lease away when the command is sent: a machine that was late before would send one that is over.
const leased = "a lease"

func trips() []trip {
	return []trip{
		{"SETNX", scripts.SidecarTake, false, false, "nobody", []any{"SETNX", leased}, "1", "service"},
		{"SETNX that waits", scripts.SidecarTake, true, false, "other", []any{"SETNX", leased}, "0", "other"},
		{"GET", scripts.SidecarGet, false, false, "service", []any{"GET"}, "own", "service"},
		{"GETSET", scripts.SidecarTake, false, false, "other", []any{"GETSET", leased}, "far", "other"},
		{"EXPIRE", scripts.SidecarRun, false, false, "service", []any{"EXPIRE", "2"}, "1", "service"},
		{"DEL", scripts.SidecarDel, false, false, "service", []any{"DEL"}, "1", "nobody"},
		{"report", scripts.StageJoin, true, true, "service", []any{"GET"}, "own", "service"},
		{"repair", scripts.SidecarKeep, true, true, "service", []any{"EXISTS"}, "", "service"},
	}
}

// memberLease is for how long the sidecar may lock without a report.
const memberLease = 3 * time.Second

// fault befalls one end. Cause is called within the round trip; what it starts may end later.
type fault struct {
	name  string
	cause func(b *brink)
	lost  bool // the connection ends with it: the client gets an error
	late  bool // the command comes after the member's lease
}

var faults = []fault{
	{"server killed", func(b *brink) { b.server.Kill(); b.link.Cut(); b.later(b.server.Start) }, true, false},
	{"server stopped", func(b *brink) { b.stopServer(300 * time.Millisecond) }, false, false},
	{"server stopped for longer than the member's lease", func(b *brink) { b.stopServer(memberLease + time.Second) }, false, true},
	{"sidecar killed", func(b *brink) { b.proxy.Kill(); b.link.Cut(); b.later(b.proxy.Start) }, true, false},
	{"sidecar stopped", func(b *brink) { b.later(b.proxy.Hold(300 * time.Millisecond)) }, false, false},
	{"connections cut", func(b *brink) { b.link.Cut() }, true, false},
}

// brink is a server, a sidecar, and between them a link that sees each command.
type brink struct {
	*site
	link   *redistest.Link
	proxy  *holders.Sidecar
	mended sync.WaitGroup
}

func (b *brink) later(f func()) { b.mended.Go(f) }

func (b *brink) stopServer(d time.Duration) {
	b.server.Signal(syscall.SIGSTOP)
	b.later(func() { time.Sleep(d); b.server.Signal(syscall.SIGCONT) })
}

// TestEveryRoundTrip places each fault into each round trip: before the command reaches the server, and after it has acted but
// before its reply. The client gets the reply or an error, never a lock that it does not hold. What it did not hear of ends with
// its lease: nothing stays on a key.
func TestEveryRoundTrip(t *testing.T) {
	for _, f := range faults {
		for _, stage := range []stages.Stage{stages.Bridge, stages.Modern} {
			t.Run(fmt.Sprintf("%s, %v", f.name, stage), func(t *testing.T) {
				t.Parallel()
				server := redistest.Real(t, "--appendonly", "yes", "--appendfsync", "always")
				s := &site{T: t, server: server, book: server, lease: 2 * time.Second}
				s.init(stages.Record{Stage: stage, Dialect: "jedis-ms", ClockLag: 100 * time.Millisecond, Patterns: []string{"lock:*"}})
				b := &brink{site: s, link: redistest.NewProxy(t, server)}
				b.proxy = s.launch(&command{Redis: b.link.Addr, Name: "billing", Member: memberLease})
				var kept []string
				for _, when := range []string{"before", "after"} {
					for _, r := range trips() {
						switch {
						case !f.late:
						case when == "after" || !r.beside && r.name != "SETNX":
							continue
						case !r.beside:
							r.reply, r.ends = "0", "nobody"
						}
						key := "lock:" + when + ":" + r.name
						b.fails(f, r, when == "after", key)
						if r.begins != "other" && !r.beside {
							kept = append(kept, key)
						}
					}
				}
				for _, key := range kept { // also those whose DEL was lost
					redistest.Await(t, "the end of the lease of "+key, func() bool {
						return server.Do("EXISTS", key, protocol.GuardKey(key)) == int64(0)
					})
				}
				conn := b.client()
				defer conn.Close()
				for _, key := range kept { // the service goes on
					redistest.Await(t, "the next lock on "+key, func() bool {
						reply, err := redis.Int(conn.Do("SETNX", key, time.Now().Add(s.lease).UnixMilli()))
						require.NoError(t, err)
						return reply == 1
					})
					_, err := conn.Do("DEL", key)
					require.NoError(t, err)
				}
			})
		}
	}
}

// client connects as the service does, as soon as the sidecar listens.
func (b *brink) client() (conn redis.Conn) {
	b.Helper()
	redistest.Await(b, "a connection through the sidecar", func() bool {
		var err error
		if conn, err = redis.Dial("tcp", b.proxy.Addr, redis.DialReadTimeout(20*time.Second)); err != nil {
			return false
		}
		if _, err = conn.Do("PING"); err != nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return conn
}

// fails sends a command, places a fault into its round trip, and compares what came of it.
func (b *brink) fails(f fault, r trip, acted bool, key string) {
	what := fmt.Sprintf("%s, acted: %v", r.name, acted)
	conn := b.client()
	defer func() { _ = conn.Close() }()
	for _, s := range scripts.All() { // else the round trip would be one that learns that a script is missing
		b.server.Do("SCRIPT", "LOAD", s.Bare())
	}
	lease := b.lease
	if r.beside {
		lease = 10 * time.Second // longer than it takes until the round trip comes, and the fault
	}
	var text string
	switch r.begins {
	case "service":
		redistest.Await(b, "the lock of "+what, func() bool { // after a restart it is a member a little later
			text = strconv.FormatInt(time.Now().Add(lease).UnixMilli(), 10)
			reply, err := redis.Int(conn.Do("SETNX", key, text))
			require.NoError(b, err, what)
			return reply == 1
		})
	case "other":
		b.server.Do("SET", key, others, "PX", 600_000)
	}
	placed, once := make(chan struct{}), sync.Once{}
	b.link.Before(func(words []string) {
		if !calls(r, words, key) {
			return
		}
		once.Do(func() {
			if !acted {
				f.cause(b)
				close(placed)
				return
			}
			before := b.ran()
			b.link.HalfOpen()
			b.later(func() {
				for b.ran() == before {
					time.Sleep(time.Millisecond)
				}
				f.cause(b)
				b.link.Heal()
				close(placed)
			})
		})
	})
	if r.script == scripts.SidecarKeep {
		b.server.Do("DEL", key) // as an old client does after its lease
	}
	send := func() (any, error) {
		args := append([]any{key}, r.send[1:]...)
		if len(args) == 2 && args[1] == leased {
			args[1] = time.Now().Add(b.lease).UnixMilli()
		}
		return conn.Do(r.send[0].(string), args...)
	}
	reply, err := send()
	came := func() bool { // a reply may be here a moment before the fault's end is noted
		select {
		case <-placed:
			return true
		default:
			return false
		}
	}
	redistest.Await(b, "the round trip of "+what, func() bool {
		if err == nil && r.own && !came() { // an attempt waits when one has failed before, and the sidecar hears
			reply, err = send()
		}
		return came()
	})
	if r.beside && err == nil {
		reply, err = send()
	}
	b.link.Before(nil)
	b.link.Heal()
	b.mended.Wait()
	if f.lost {
		assert.Error(b, err, what)
	} else if assert.NoError(b, err, what) {
		got := fmt.Sprint(reply)
		if bulk, ok := reply.([]byte); ok {
			got = string(bulk)
		}
		switch {
		case got == text:
			got = "own"
		case len(got) == len(others):
			got = "far"
		}
		if r.reply != "" {
			assert.Equal(b, r.reply, got, what)
		}
	}
	want := r.ends
	if f.lost && !acted {
		want = r.begins
	}
	if r.script == scripts.SidecarKeep {
		redistest.Await(b, what, func() bool { return b.holder(key) == want })
	}
	assert.Equal(b, want, b.holder(key), what)
	if r.beside { // the service gives back what it has
		_ = conn.Close()
		conn = b.client()
		_, err := conn.Do("DEL", key)
		require.NoError(b, err, what)
		assert.Equal(b, int64(0), b.server.Do("EXISTS", key, protocol.GuardKey(key)), what)
	}
}

// calls tells whether a command is the round trip's.
func calls(r trip, words []string, key string) bool {
	at := 3
	switch {
	case r.script == scripts.StageJoin:
		return len(words) > 1 && words[0] == "EVALSHA" && words[1] == r.script.Digest
	case len(words) < 4 || words[at] != key:
		return false
	case r.own:
		return words[0] == "EVALSHA" && words[1] == r.script.Digest
	}
	return scripts.NameOf(words[1]) == r.script.Name
}

// ran is how many scripts the server has run.
func (b *brink) ran() (n int) {
	reply, err := b.server.Try("INFO", "commandstats")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(fmt.Sprintf("%s", reply)) {
		for _, name := range []string{"eval", "evalsha"} {
			if rest, found := strings.CutPrefix(line, "cmdstat_"+name+":calls="); found {
				count, _, _ := strings.Cut(rest, ",")
				c, _ := strconv.Atoi(count)
				n += c
			}
		}
	}
	return n
}

// holder tells who holds a key, by what stands on it. Nothing may stand there without a TTL.
func (b *brink) holder(key string) string {
	value, _ := redis.String(b.server.Do("GET", key), nil)
	if value == "" {
		return "nobody"
	}
	assert.Positive(b, b.server.Do("PTTL", key), "%s has no TTL", key)
	if value == others {
		return "other"
	}
	number, _ := strconv.ParseInt(value, 10, 64)
	assert.GreaterOrEqual(b, number, int64(protocol.BridgeLow), "%s holds %s", key, value)
	return "service"
}
