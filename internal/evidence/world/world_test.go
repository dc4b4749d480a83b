package world_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
)

// dial makes a connection with a reply timeout of a second.
func dial(w *world.World, r *world.Route) redis.Conn {
	w.Helper()
	conn, err := redis.DialContext(w.Context(), "tcp", "", redis.DialContextFunc(r.Dial), redis.DialReadTimeout(time.Second))
	require.NoError(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestFaults: what each fault does to a command, its reply, and the connection.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault world.Fault
		err   error         // of the command; nil: none
		took  time.Duration // at least, less a millisecond
		ran   bool
	}{
		{"nothing", world.Fault{}, nil, 0, true},
		{"the command is lost", world.Fault{LoseCommand: true}, os.ErrDeadlineExceeded, time.Second, false},
		{"the reply is lost", world.Fault{LoseReply: true}, os.ErrDeadlineExceeded, time.Second, true},
		{"the command is late", world.Fault{LateCommand: 300 * time.Millisecond}, nil, 300 * time.Millisecond, true},
		{"the reply is late", world.Fault{LateReply: 300 * time.Millisecond}, nil, 300 * time.Millisecond, true},
		{"too late", world.Fault{LateReply: 3 * time.Second}, os.ErrDeadlineExceeded, time.Second, true},
		{"refused", world.Fault{Refused: "OOM no"}, redis.Error("OOM no"), 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			world.Run(t, 1, func(w *world.World) {
				s := w.Server()
				r := w.Process("a").Route(s)
				conn := dial(w, r)
				r.Next(2, c.fault)
				_, err := conn.Do("PING")
				require.NoError(w, err)
				start := time.Now()
				_, err = conn.Do("SET", "k", "v")
				require.ErrorIs(w, err, c.err)
				require.InDelta(w, c.took.Seconds(), time.Since(start).Seconds(), 0.001)
				_, ran := s.Value("k")
				require.Equal(w, c.ran, ran)
				require.Equal(w, "PING SET", r.Commands())
			})
		})
	}
}

// TestRoutes: what happens to a whole route, and that Heal ends it.
func TestRoutes(t *testing.T) {
	world.Run(t, 1, func(w *world.World) {
		s := w.Server()
		r := w.Process("a").Route(s)
		set := func(conn redis.Conn, key string) error {
			_, err := conn.Do("SET", key, "v")
			return err
		}
		there := func(key string) bool { _, ok := s.Value(key); return ok }

		first := dial(w, r)
		r.Partition()
		require.ErrorIs(w, set(first, "partition"), os.ErrDeadlineExceeded)
		require.False(w, there("partition"))
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		_, err := r.Dial(ctx, "", "")
		require.ErrorIs(w, err, context.DeadlineExceeded, "a new connection gets no answer")
		r.Heal()
		synctest.Wait()
		require.True(w, there("partition"), "it was held up, and arrives late")

		second := dial(w, r)
		r.HalfOpen()
		require.ErrorIs(w, set(second, "half"), os.ErrDeadlineExceeded)
		require.True(w, there("half"), "it ran")
		r.Heal()

		r.Refuse(false)
		_, err = r.Dial(w.Context(), "", "")
		require.ErrorContains(w, err, "refused")
		r.Heal()

		third := dial(w, r)
		require.NoError(w, set(third, "third"))
		require.Equal(w, 1, r.Open())
		r.Cut()
		require.ErrorContains(w, set(third, "cut"), "reset")
		require.False(w, there("cut"))

		fourth := dial(w, r)
		s.Kill()
		require.Error(w, set(fourth, "down"))
		_, err = r.Dial(w.Context(), "", "")
		require.Error(w, err)
		s.Start()
		require.NoError(w, set(dial(w, r), "up"))
		require.False(w, there("third"), "its data is gone")

		fifth := dial(w, r)
		thaw := s.Freeze()
		sixth := dial(w, r)
		require.ErrorIs(w, set(fifth, "frozen"), os.ErrDeadlineExceeded)
		require.False(w, there("frozen"))
		thaw()
		synctest.Wait()
		require.True(w, there("frozen"))
		require.NoError(w, set(sixth, "sixth"))
	})
}

// TestFrozen: a frozen process neither sends nor hears nor goes on; then what it has sent arrives.
func TestFrozen(t *testing.T) {
	world.Run(t, 1, func(w *world.World) {
		s, p := w.Server(), w.Process("a")
		r := p.Route(s)
		conn := dial(w, r)
		p.Freeze()
		start := time.Now()
		time.AfterFunc(time.Minute, p.Thaw)
		require.NoError(w, conn.Send("SET", "k", "v"))
		require.NoError(w, conn.Flush())
		time.Sleep(time.Second)
		_, there := s.Value("k")
		require.False(w, there)
		p.Sleep(time.Second)
		require.Equal(w, time.Minute, time.Since(start))
		_, err := conn.Receive()
		require.NoError(w, err)
	})
}

// TestRightsAndMemory: what ACL rules and maxmemory refuse, outside of scripts and inside. A real server refuses the same.
func TestRightsAndMemory(t *testing.T) {
	refusals := func(t testing.TB, conn redis.Conn, rights func(rules string), full func(bool)) {
		do := func(words ...any) string {
			reply, err := conn.Do(words[0].(string), words[1:]...)
			if err != nil {
				return err.Error()
			}
			if text, ok := reply.([]byte); ok {
				return string(text)
			}
			return fmt.Sprint(reply)
		}
		rights("~lock* -time resetchannels")
		require.Equal(t, "OK", do("SET", "lock", "v"))
		require.Equal(t, "NOPERM this user has no permissions to access one of the keys used as arguments", do("SET", "other", "v"))
		require.Contains(t, do("TIME"), "NOPERM this user has no permissions to run the 'time' command")
		require.Equal(t, "NOPERM this user has no permissions to access one of the channels used as arguments", do("PUBLISH", "c", "m"))
		require.Regexp(t, "^ERR The user executing the script can't run this command or subcommand script: .* on @user_script", do("EVAL", "return redis.call('TIME')", 0))
		require.Equal(t, "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
			do("EVAL", "return redis.pcall('GET', 'other').err", 0))
		require.Equal(t, "ERR The user executing the script can't publish to the channel mentioned in the command", do("EVAL", "return redis.pcall('PUBLISH', 'c', 'm').err", 0))
		rights("~*")
		full(true)
		require.Equal(t, "OOM command not allowed when used memory > 'maxmemory'.", do("SET", "lock", "v"))
		require.Regexp(t, "^OOM command not allowed when used memory > 'maxmemory'. script: .* on @user_script", do("EVAL", "return redis.call('SET', KEYS[1], 'w')", 1, "lock"))
		require.Equal(t, "OK", do("EVAL", "redis.call('DEL', KEYS[1]) return redis.call('SET', KEYS[1], 'w')", 1, "lock"), "not after a write")
		require.Equal(t, "1", do("DEL", "lock"))
		require.Equal(t, "0", do("PEXPIRE", "lock", 1))
		full(false)
	}
	t.Run("world", func(t *testing.T) {
		world.Run(t, 1, func(w *world.World) {
			s := w.Server()
			refusals(w, dial(w, w.Process("a").Route(s)), s.Rights, s.OutOfMemory)
			s.OutOfMemory(true)
			require.Equal(w, "OK", s.Do("SET", "mine", "v"), "the test's own commands")
		})
	})
	t.Run("redis", func(t *testing.T) {
		s := redistest.Real(t)
		rights := func(rules string) { s.Grant("user", append([]string{"+@all", "&*"}, strings.Fields(rules)...)...) }
		rights("~*")
		refusals(t, s.ConnAs("user"), rights, func(full bool) {
			s.Do("CONFIG", "SET", "maxmemory", map[bool]string{true: "1", false: "0"}[full])
		})
	})
}

// TestASeedMakesTheWorld: the same seed gives the same delays, another one others.
func TestASeedMakesTheWorld(t *testing.T) {
	delays := func(seed uint64) (text string) {
		world.Run(t, seed, func(w *world.World) {
			conn := dial(w, w.Process("a").Route(w.Server()))
			for range 5 {
				start := time.Now()
				_, err := conn.Do("PING")
				require.NoError(w, err)
				text += time.Since(start).String() + " "
			}
		})
		return text
	}
	require.Equal(t, delays(1), delays(1))
	require.NotEqual(t, delays(1), delays(2))
	require.False(t, strings.Contains(delays(1), "-"))
}
