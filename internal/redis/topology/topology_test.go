package topology

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRead(t *testing.T) {
	for reply, want := range map[string]struct {
		r    Refusal
		slot int
		addr string
	}{
		"MOVED 3999 127.0.0.1:6381":      {Moved, 3999, "127.0.0.1:6381"},
		"MOVED 3999 :6381":               {Moved, 3999, ":6381"},
		"ASK 16383 [::1]:6381":           {Ask, 16383, "[::1]:6381"},
		"MOVED 1 ::1:6381":               {Moved, 1, "[::1]:6381"},
		"MOVED 1 host.example:6381 more": {Moved, 1, "host.example:6381"},
		"TRYAGAIN Multiple keys":         {Later, 0, ""},
		"CLUSTERDOWN Hash slot":          {Later, 0, ""},
		"LOADING Redis is loading":       {Later, 0, ""},
		"MASTERDOWN Link":                {Later, 0, ""},
		"READONLY You can't write":       {Demoted, 0, ""},
		// A script's, before Redis 7 and from 7 on.
		"ERR Error running script (call to f_2a): @user_script:7: @user_script: 7: -READONLY You can't write": {Demoted, 0, ""},
		"READONLY You can't write against a read only replica. script: 2a, on @user_script:1.":                {Demoted, 0, ""},
		"@user_script: 137: -READONLY You can't write against a read only replica.":                           {Demoted, 0, ""},
		"@user_script: 137: -NOPERM this user has no permissions":                                             {Answer, 0, ""},
		"ERR Error running script (call to f_2a): @user_script:7: wrong type":                                 {Answer, 0, ""},

		"MOVED 16384 a:1": {Answer, 0, ""},
		"MOVED -1 a:1":    {Answer, 0, ""},
		"MOVED 1 a":       {Answer, 0, ""},
		"MOVED 1 a:99999": {Answer, 0, ""},
		"MOVED":           {Answer, 0, ""},
		"ERR MOVED 1 a:1": {Answer, 0, ""},
		"":                {Answer, 0, ""},
	} {
		r, slot, addr := Read(reply)
		assert.Equal(t, want.r, r, reply)
		assert.Equal(t, want.slot, slot, reply)
		assert.Equal(t, want.addr, addr, reply)
	}
}

func FuzzRedirect(f *testing.F) {
	for _, s := range []string{"MOVED 1 a:1", "ASK 16383 [::1]:6379", "MOVED 1 :1", "TRYAGAIN", "MOVED 99999999999999999999 a:1", "ASK \x00 \xff:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, reply string) {
		r, slot, addr := Read(reply)
		require.False(t, slot < 0 || slot >= slots, "slot %d", slot)
		require.False(t, (r == Moved || r == Ask) == (addr == ""), "%v with address %q", r, addr)
		if addr != "" {
			if _, _, err := net.SplitHostPort(addr); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// map of a test: two servers that each name the other.
type loop struct{ asked int }

func (l *loop) Locate(context.Context, string) (string, error) { l.asked++; return "a:1", nil }
func (l *loop) DialAddr(context.Context, string) (redis.Conn, error) {
	return nil, errors.New("no")
}
func (l *loop) Address(told string) string { return told }
func (l *loop) Moved(int, string)          {}
func (l *loop) Stale(string)               {}
func (l *loop) Patience() time.Duration    { return 50 * time.Millisecond }
func (l *loop) Gone(func(string)) func()   { return func() {} }

func TestRedirectionsInACircleEnd(t *testing.T) {
	l := &loop{}
	c := Begin(l, "k")
	for n := 0; ; n++ {
		if _, _, err := c.Next(t.Context()); err != nil || n > 10000 {
			t.Fatal("it goes on for ever")
		}
		again, pause := c.Refused("MOVED 1 b:1")
		if !again {
			return
		}
		Sleep(t.Context(), pause)
	}
}

func TestKeyOf(t *testing.T) {
	for _, c := range []struct {
		name string
		args []any
		key  string
		ok   bool
	}{
		{"GET", []any{"k"}, "k", true},
		{"get", []any{[]byte("k")}, "k", true},
		{"EVALSHA", []any{"sha", 1, "k", "v"}, "k", true},
		{"EVAL", []any{"text", 0, "v"}, "", false},
		{"EVAL", []any{"text", "2", "k", "l"}, "k", true},
		{"PING", nil, "", false},
		{"WAIT", []any{1, 100}, "", false},
		{"GET", nil, "", false},
	} {
		key, ok := KeyOf(c.name, c.args)
		assert.Equal(t, c.key, key, c)
		assert.Equal(t, c.ok, ok, c)
	}
	assert.False(t, Idempotent("set"))
	assert.True(t, Idempotent("get"))
}

func TestTable(t *testing.T) {
	table := NewTable()
	table.Assign(0, 99, "a:1")
	table.Assign(100, 16383, "b:1")
	table.Assign(5, 5, "b:1")
	assert.Equal(t, 16384, table.Served())
	assert.Equal(t, "b:1", table.At(5))
	assert.Equal(t, "a:1", table.At(6))
	table.Assign(-5, 99999, "c:1")
	assert.Equal(t, "c:1", table.At(0))
	assert.Equal(t, "x:1", Single("x:1").At(7))
	assert.True(t, strings.Contains(notServed("k").Error(), `"k"`))
}

// Where any master will do, one that has just led nowhere is not chosen: it may hang, and the others do not.
func TestAnyMasterIsOneThatAnswers(t *testing.T) {
	f := NewRouter(Options{Find: func(context.Context, []string) (*Table, error) {
		table := NewTable()
		table.Assign(0, 8191, "a:1")
		table.Assign(8192, slots-1, "b:1")
		return table, nil
	}})
	defer f.Close()
	anyMaster := func() string {
		addr, err := f.Locate(t.Context(), "")
		assert.NoError(t, err)
		return addr
	}
	assert.Equal(t, "a:1", anyMaster())
	f.Stale("a:1")
	assert.Equal(t, "b:1", anyMaster())
	f.Stale("b:1")
	assert.Equal(t, "a:1", anyMaster(), "it is longer ago there")
	f.suspect["a:1"], f.suspect["b:1"] = time.Now().Add(-2*suspectFor), time.Now().Add(-2*suspectFor)
	assert.Equal(t, "a:1", anyMaster())
}

// Answers of sentinels, and of servers that are none.
func TestAskSentinel(t *testing.T) {
	words := func(of ...string) (all []any) {
		for _, w := range of {
			all = append(all, []byte(w))
		}
		return all
	}
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		master, address any // replies, or errors
		addr            string
		epoch           int64
		want            error
	}{
		"a master":             {words("ip", "old", "config-epoch", "7"), words("::1", "6379"), "[::1]:6379", 7, nil},
		"no such master":       {redis.Error("ERR No such master with that name"), nil, "", 0, ErrNoMaster},
		"it is gone meanwhile": {words("config-epoch", "7"), nil, "", 0, ErrNoMaster},
		"half an address":      {words("config-epoch", "7"), words("::1"), "", 0, ErrNoMaster},
		"no epoch":             {words("ip", "old"), words("::1", "6379"), "", 0, ErrNoEpoch},
		"an epoch below 0":     {words("config-epoch", "-1"), words("::1", "6379"), "", 0, ErrNoEpoch},
		"no sentinel":          {redis.Error("ERR unknown command"), nil, "", 0, redis.Error("ERR unknown command")},
		"no second reply":      {words("config-epoch", "7"), broken, "", 0, broken},
	} {
		t.Run(name, func(t *testing.T) {
			addr, epoch, err := AskSentinel(func(_ string, args ...any) (any, error) {
				reply := c.address
				if args[0] == "MASTER" {
					reply = c.master
				}
				if err, is := reply.(error); is {
					return nil, err
				}
				return reply, nil
			}, "orders")
			assert.Equal(t, c.want, err)
			assert.Equal(t, c.addr, addr)
			assert.Equal(t, c.epoch, epoch)
		})
	}
}

func TestNewestOf(t *testing.T) {
	dead := errors.New("dead")
	ask := func(addr string) (string, int64, error) {
		switch addr {
		case "old":
			return "a", 6, nil
		case "new":
			return "b", 7, nil
		default:
			return "", 0, dead
		}
	}
	for _, order := range [][]string{{"old", "new", "dead"}, {"dead", "new", "old"}} {
		addr, epoch, errs := NewestOf(order, ask)
		assert.Equal(t, "b", addr)
		assert.EqualValues(t, 7, epoch)
		assert.Equal(t, []error{dead}, errs)
	}
	_, epoch, errs := NewestOf([]string{"dead", "dead"}, ask)
	assert.EqualValues(t, -1, epoch)
	assert.Len(t, errs, 2)
}
