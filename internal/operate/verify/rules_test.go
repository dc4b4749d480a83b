package verify_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
)

// ruled is a server on which Go services, old services and operators have users of their own, which all may log in with pw.
type ruled struct {
	*testing.T
	*redistest.Server
	ops *endpoint.Endpoint
}

// newRuled gives the Go services the rights of fleet on all commands.
func newRuled(t *testing.T, fleet ...string) *ruled {
	s := redistest.Real(t)
	live(s)
	s.Grant("go", append(fleet, "+@all")...)
	s.Grant("old", "~*", "+@all")
	s.Grant("ops", "allkeys", "+@all", "-@write")
	ops := at(t, s.URLOf("ops"))
	return &ruled{t, s, ops}
}

// must sends a command that the connection's user may run.
func (r *ruled) must(conn redis.Conn, command string, args ...any) {
	r.T.Helper()
	_, err := conn.Do(command, args...)
	require.NoError(r, err)
}

// look runs verify as the operator, and f once within the window.
func (r *ruled) look(trusted []string, f func()) verify.Certificate {
	r.T.Helper()
	return within(r.T, r.ops, verify.Options{Window: 400 * time.Millisecond, Match: []string{"lock:*"}, Trusted: trusted}, f)
}

// TestRulesInPlaceOfMonitor has the old services and the other application under users that may not write lock keys,
// and the new services under a user of their own. No MONITOR runs.
func TestRulesInPlaceOfMonitor(t *testing.T) {
	s := newRuled(t, "~lock:*")
	fleet, old, admin := s.ConnAs("go"), s.ConnAs("old"), s.ConnAs("old")
	s.Do("ACL", "SETUSER", "default", "resetkeys", "~cache:*")
	look := func(trusted []string, f func()) verify.Certificate {
		t.Helper()
		return s.look(trusted, func() {
			s.Do("SETNX", "cache:a", "1")
			s.Do("HSET", "cache:h", "f", "1") // a command that no fence denies
			s.Do("RENAME", "cache:a", "cache:b")
			s.Do("DEL", "cache:b", "cache:h")
			s.must(fleet, "SET", "lock:a", "token", "NX", "PX", 1)
			f()
		})
	}
	nothing := func() {}
	assert.Equal(t, []string{"commands"}, open(look([]string{"go"}, nothing)), "user old may write lock keys")
	s.must(admin, "ACL", "SETUSER", "old", "resetkeys", "~cache:*")
	assert.Equal(t, []string{"commands"}, open(look(nil, nothing)), "nobody said what user go is")
	c := look([]string{"go"}, nothing)
	assert.Equal(t, verify.NoneSeen, c.Verdict, c.Why)

	s.Grant("gone", "~*", "+@all")
	gone := s.ConnAs("gone")
	s.Do("ACL", "SETUSER", "gone", "off")
	c = look([]string{"go"}, func() {
		s.must(gone, "SETNX", "lock:b", "1") // a user that is off keeps its connections
		s.must(gone, "DEL", "lock:b")
	})
	assert.Equal(t, []string{"commands"}, open(c), c.Why)
	s.Do("CLIENT", "KILL", "USER", "gone")
	c = look([]string{"go"}, nothing)
	assert.Equal(t, verify.NoneSeen, c.Verdict, c.Why)

	c = look([]string{"go"}, func() {
		_, err := old.Do("SETNX", "lock:b", "1")
		assert.ErrorContains(t, err, "NOPERM")
	})
	assert.Equal(t, verify.Seen, c.Verdict, c.Why)
	c = look([]string{"go"}, func() { // ACL LOG joins these to a SETNX of another key and a DEL of a lock
		for _, words := range []string{"GET other", "GET other", "SETNX other 1", "SETNX lock:b 1", "DEL lock:b"} {
			command, args, _ := strings.Cut(words, " ")
			require.NoError(t, old.Send(command, redis.Args{}.AddFlat(strings.Fields(args))...))
		}
		s.must(old, "")
	})
	assert.NotEqual(t, verify.NoneSeen, c.Verdict, "what hides behind other commands: %s", c.Why)
	c = look([]string{"go"}, func() {
		s.must(admin, "ACL", "SETUSER", "old", "~lock:*")
		s.must(old, "SETNX", "lock:b", "1")
		s.must(old, "DEL", "lock:b")
		s.must(admin, "ACL", "SETUSER", "old", "resetkeys", "~cache:*")
	})
	assert.Equal(t, []string{"commands"}, open(c), "rules that changed exclude nothing")
}

// TestFenceInPlaceOfMonitor puts up a fence with SET for the users that old clients and other applications have. Then a
// short look without MONITOR is enough beside their SETNX and SET on other keys, and a client that takes a lock by
// SET with NX is denied and seen.
func TestFenceInPlaceOfMonitor(t *testing.T) {
	ctx := context.Background()
	s := newRuled(t, "~*", "&*")
	s.Do("ACL", "SETUSER", "old", "&*")
	fleet, old, admin := s.ConnAs("go"), s.ConnAs("old"), s.ConnAs("go")
	look := func(f func()) verify.Certificate {
		t.Helper()
		return s.look([]string{"go"}, func() {
			s.must(old, "SETNX", "cache:a", "1")
			s.must(old, "SET", "cache:b", "1")
			s.must(fleet, "SET", "lock:a", "token", "NX", "PX", 1)
			f()
		})
	}
	nothing := func() {}
	put := func(o fence.Options) {
		o.Users, o.Locks = []string{"old", "default"}, []string{"lock:*"}
		plans, err := fence.Make(ctx, admin, s.Addr, o)
		require.NoError(t, err)
		for i := range plans {
			require.Empty(t, plans[i].Error)
			require.NoError(t, plans[i].Execute(ctx, admin, nil))
		}
	}
	put(fence.Options{Keep: []string{"cache:*"}})
	assert.Equal(t, []string{"commands"}, open(look(nothing)), "SET remains")
	put(fence.Options{All: true, Keep: []string{"cache:*"}})
	c := look(nothing)
	assert.Equal(t, verify.NoneSeen, c.Verdict, c.Why)
	c = look(func() {
		_, err := old.Do("SET", "lock:b", "1795262400000", "NX")
		assert.ErrorContains(t, err, "NOPERM")
	})
	assert.Equal(t, verify.Seen, c.Verdict, c.Why)
	require.NotEmpty(t, c.Evidence.Seen)
	assert.Contains(t, c.Evidence.Seen[0].Evidence, "SET denied")
	assert.Equal(t, []string{"lock:b"}, c.Evidence.Seen[0].Keys)
	c = look(func() {
		_, err := old.Do("EVAL", "return redis.call('GETSET', KEYS[1], '1')", 1, "lock:b")
		assert.Error(t, err)
	})
	assert.Equal(t, verify.Seen, c.Verdict, "in a script: %s", c.Why)
	c = look(func() {
		_, err := old.Do("SET", "other:b", "1")
		assert.ErrorContains(t, err, "NOPERM")
	})
	assert.Equal(t, verify.NoneSeen, c.Verdict, "denied on another key: %s", c.Why)
}

// TestLeastRights has a user with the rights that docs/operator.md lists. Each right that is taken away leaves an
// obligation open, or ends the run at its beginning.
func TestLeastRights(t *testing.T) {
	s := redistest.Real(t)
	s.Do("SET", "lock:a", "token", "PX", 60_000)
	rights := strings.Fields("+echo +info +command|info +monitor +client|list +scan +time +getrange +pttl")
	look := func(rights []string) (verify.Certificate, error) {
		s.Grant("ops", append([]string{"%R~lock:*"}, rights...)...)
		end := at(t, s.URLOf("ops"))
		once := sync.Once{}
		return verify.Run(context.Background(), end, verify.Options{
			Window: 200 * time.Millisecond, Longest: 200 * time.Millisecond, Match: []string{"lock:*"}, Whole: true,
			Progress: func(left time.Duration, _ int) {
				if left > 0 {
					once.Do(func() { s.Do("SETNX", "cache:a", "1") })
				}
			},
		})
	}
	c, err := look(rights)
	require.NoError(t, err)
	assert.Equal(t, verify.NoneSeen, c.Verdict, c.Why)
	for i, without := range rights {
		var others []string
		others = append(append(others, rights[:i]...), rights[i+1:]...)
		c, err := look(others)
		if err != nil {
			assert.Contains(t, err.Error(), strings.Split(without[1:], "|")[0], without)
			continue
		}
		assert.Equal(t, verify.Inconclusive, c.Verdict, without)
		if without == "+monitor" {
			assert.Regexp(t, "MONITOR could not begin: .*NOPERM", c.Why)
		}
	}
}
