package clients

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func (c client) start(t *testing.T, s *redistest.Server, more ...holders.Option) *holders.Holder {
	t.Helper()
	return holders.Start(t, c.kind, s.URL(), slices.Concat(c.opts, more)...)
}

func (c client) acquire(t *testing.T, h *holders.Holder) {
	t.Helper()
	e := h.Do("acquire %s", c.key)
	require.Equal(t, "acquired", e.Event, "%s: %+v", h, e)
}

// said are the commands on a key, without what scripts ran and with it, each in the form that the table uses.
func said(t *testing.T, lines []redistest.Command, key string) string {
	t.Helper()
	var out []string
	inside := []string(nil)
	for _, c := range lines {
		name := c.Words[0]
		onKey := slices.Contains(c.Words[1:], key)
		switch {
		case c.Addr == "lua" && onKey:
			inside = append(inside, name)
			continue
		case name == "EVALSHA" || name == "EVAL":
		case name == "SET":
			flags := []string{}
			for _, f := range []string{"EX", "PX", "NX"} { // whatever the client's order
				if slices.ContainsFunc(c.Words[3:], func(w string) bool { return strings.EqualFold(w, f) }) {
					flags = append(flags, f)
				}
			}
			name = strings.Join(append([]string{"SET"}, flags...), " ")
		case name == "UNWATCH":
		case !onKey:
			continue
		}
		out = append(out, name)
	}
	for i, name := range out {
		if (name == "EVAL" || name == "EVALSHA") && inside != nil {
			out[i] = fmt.Sprintf("%s (%s)", name, strings.Join(inside, ", "))
		}
	}
	return strings.Join(out, ", ")
}

// latin makes each byte a rune, so that a regular expression can speak of bytes.
func latin(value string) string {
	runes := make([]rune, len(value))
	for i := range len(value) {
		runes[i] = rune(value[i])
	}
	return string(runes)
}

// TestClients lets the processes of each client, one whose clock is ahead by an hour among them, and the tools say what docs/clients.md
// has of it.
func TestClients(t *testing.T) {
	t.Parallel()
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			h, dead, ahead := c.start(t, s), c.start(t, s), (*holders.Holder)(nil)
			if c.clock != nil {
				ahead = c.start(t, s, c.clock(t, hour))
			}
			for _, step := range []struct {
				name string
				test func(t *testing.T, s *redistest.Server, h, dead, ahead *holders.Holder)
			}{
				{"truth", c.truth}, {"Go keeps out", c.goKeepsOut}, {"observe", c.observes}, {"verify", c.verifies},
				{"takeover", c.takesOver}, {"scan, doctor and a crash", c.crashes},
			} {
				t.Run(step.name, func(t *testing.T) { step.test(t, s, h, dead, ahead) })
				s.Do("FLUSHALL")
			}
		})
	}
}

// truth: what each client sends, writes, and makes of what it finds.
func (c client) truth(t *testing.T, s *redistest.Server, h, _, ahead *holders.Holder) {
	c.acquire(t, h) // scripts are loaded with the first
	if !c.never {
		require.Equal(t, "released", h.Do("release %s", c.key).Event)
	}
	s.Do("DEL", c.key)

	m := s.Monitor()
	c.acquire(t, h)
	assert.Equal(t, c.takes, said(t, m.Everything(), c.key), "takes")
	assert.Equal(t, c.ttl, s.Do("PTTL", c.key).(int64) > 0, "TTL")
	assert.True(t, regexp.MustCompile(c.form).MatchString(latin(s.Value(c.key))), "value %q", s.Value(c.key))
	m.Everything()
	h.Do("release %s", c.key)
	assert.Equal(t, c.releases, said(t, m.Everything(), c.key), "releases")
	assert.Equal(t, c.never, s.Do("EXISTS", c.key).(int64) == 1)

	// A random text: a token of any kind.
	const text = "0f0e0d0c-0b0a-4908-8706-050403020100"
	s.Do("SET", c.key, text)
	assert.Equal(t, c.text, c.reads(t, s, h, text), "a text on the key")

	if ahead != nil {
		s.Do("DEL", c.key)
		c.acquire(t, h)
		want := map[bool]string{true: "acquired", false: "busy"}[c.moved]
		assert.Equal(t, want, ahead.Do("try %s", c.key).Event, "a clock ahead by an hour")
	}
}

// goKeepsOut: a client finds a Go holder's value and takes it for held, whatever its clock says, at each stage.
func (c client) goKeepsOut(t *testing.T, s *redistest.Server, h, _, ahead *holders.Holder) {
	for _, stage := range []string{"bridge", "modern"} {
		locker, err := newCompat(s.Pool(), stage, c.goDialect(), 30*time.Second) // no busy machine makes it late
		require.NoError(t, err)
		lock, err := locker.Acquire(t.Context(), c.key)
		require.NoError(t, err)
		assert.Equal(t, held, c.reads(t, s, h, s.Value(c.key)), stage)
		if ahead != nil {
			assert.Equal(t, held, c.reads(t, s, ahead, s.Value(c.key)), stage)
		}
		assert.NoError(t, lock.Renew(t.Context()))
		assert.NoError(t, lock.Release(t.Context()))
		assert.NoError(t, locker.Close())
		assert.True(t, strings.HasPrefix(h.Do("try %s", c.key).Event, "acq"), "and free after it")
		s.Do("FLUSHALL")
	}
}

// reads tells what an attempt makes of a value on the key, which it should take for held.
func (c client) reads(t *testing.T, s *redistest.Server, h *holders.Holder, value string) reading {
	t.Helper()
	e := h.Do("try %s", c.key)
	same := s.Value(c.key) == value
	switch {
	case e.Event == "acquired":
		return steals
	case !same:
		return destroys
	case e.Event == "error":
		return throws
	}
	require.Equal(t, "busy", e.Event, "%+v", e)
	return held
}

// takesOver: who takes over what a crashed holder left, and by which commands.
func (c client) takesOver(t *testing.T, s *redistest.Server, h, dead, _ *holders.Holder) {
	c.acquire(t, dead)
	dead.Kill()
	if c.lease == 0 {
		assert.Equal(t, int64(-1), s.Do("PTTL", c.key), "nothing ever takes it away")
		assert.Equal(t, "busy", h.Do("try %s", c.key).Event)
		return
	}
	m := s.Monitor()
	c.acquire(t, h)
	if sent := said(t, m.Everything(), c.key); c.takeover != "" {
		assert.True(t, strings.HasSuffix(sent, c.takeover), "takes over: %s", sent)
	} else {
		assert.NotContains(t, sent, "GETSET", "the key has gone by itself")
	}
}

// TestLosersLeaveNothingForEver: redis-py up to 2.9.1, with its default of no timeout, takes a key that has gone for an expired
// one. A loser's GETSET may then overwrite a bridge holder's value with one that never expires. The bridge gives such a loser
// the time to come first, and frees the key if it comes late, as a redis-py holder would, also where it comes over a lock that was
// handed to a waiter and that nobody has begun to hold. Without these, the
// key of this fleet was dead for ever after some fifty turns.
func TestLosersLeaveNothingForEver(t *testing.T) {
	t.Parallel()
	for version, kind := range map[string]holders.Kind{"2.7.6": holders.RedisPy27, "2.9.1": holders.RedisPy} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			py := func() *holders.Holder { return holders.Start(t, kind, s.URL(), quick) }
			ours := ofGo(t, s, "compat", holders.Arg("stage", "bridge"), holders.Arg("dialect", "redispy-float"))
			report := holders.Fleet{
				T: t, Server: s, Key: "lock.order.1", Turns: 250, Hold: 10 * time.Millisecond, Limit: 2 * time.Minute, Record: true,
				Members: []holders.Member{py, py, ours, ours},
			}.Run()
			t.Log(report)
			assert.Zero(t, report.Overlaps, redistest.Violated)
			assert.Empty(t, report.Thrown(memberTTL), "a lock threw")
		})
	}
}

// TestBreath: after a release the guard keeps bridge clients off for a moment, where an old client may take the key for expired.
func TestBreath(t *testing.T) {
	for dialect, wanted := range map[string]string{
		"redispy-float": "SET breath PX 5", "redis-objects": "SET breath PX 5", "sec-pid-thread": "SET breath PX 5",
		"jedis-ms": "DEL", "jedis-uuid": "DEL", "redis-doc": "DEL", "jboot": "DEL",
	} {
		t.Run(dialect, func(t *testing.T) {
			s := redistest.Real(t)
			locker, err := newCompat(s.Pool(), "bridge", dialect, 30*time.Second)
			require.NoError(t, err)
			defer locker.Close()
			for range 2 { // one after the other: the second waits for that moment
				lock, err := locker.Acquire(t.Context(), "lock.order.1")
				require.NoError(t, err)
				m := s.Monitor()
				require.NoError(t, lock.Release(t.Context()))
				var did []string
				for _, c := range m.Everything() {
					if c.Addr == "lua" && slices.Contains(c.Words, "{lock.order.1}:guard") { // DEL has the key beside it
						did = append(did, strings.Join(slices.DeleteFunc(slices.Clone(c.Words), func(w string) bool { return strings.Contains(w, "lock.order.1") }), " "))
					}
				}
				assert.Contains(t, did, wanted)
			}
		})
	}
}
