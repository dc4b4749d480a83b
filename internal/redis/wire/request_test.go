package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// full is a command of which every field counts, and no two are alike.
func full(op protocol.Op) protocol.Command {
	c := protocol.Command{Op: op}
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case v.Type().Field(i).Name == "Op":
		case f.Kind() == reflect.String:
			f.SetString(v.Type().Field(i).Name)
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.Type() == reflect.TypeFor[protocol.Unit]():
			f.Set(reflect.ValueOf(protocol.Nanoseconds))
		case f.Type() == reflect.TypeFor[protocol.Layout]():
			f.Set(reflect.ValueOf(protocol.MaybeQuoted))
		case f.Type() == reflect.TypeFor[*protocol.SidecarCall]():
			f.Set(reflect.ValueOf(&protocol.SidecarCall{Name: "n", Form: "nx", Text: "the text", Far: "f", Now: 2e6, Until: 3e6, Settle: 5e6}))
		default:
			f.SetInt(int64(time.Duration(i) * time.Second))
		}
	}
	return c
}

// TestArguments: a script gets each key and argument that its header names, in its place, and what may be left out is left out.
// Every field of a command reaches a script, or a plain command.
func TestArguments(t *testing.T) {
	for op := range protocol.Op(255) {
		for _, gated := range []bool{false, true} {
			c := full(op)
			if !gated {
				c.NotAfter = 0
			}
			s := script(&c)
			if s == nil {
				continue
			}
			var request Request
			request.call(s, &c)
			args := request.Args()
			packed := min(len(s.Words), 1)
			require.Len(t, args, 2+len(s.Keys)+len(s.Args)+packed, "%s", s.Name)
			if packed > 0 {
				assert.Equal(t, len(s.Words), len(strings.SplitN(args[len(args)-1].(string), " ", len(s.Words))), "%s", s.Name)
			}
			assert.Equal(t, []any{s.Digest, len(s.Keys)}, args[:2])
			for i, a := range append(s.Keys[:len(s.Keys):len(s.Keys)], s.Args...) {
				assert.Equal(t, argument(&c, c.Key, a.Name), args[2+i], "%s: %s", s.Name, a.Name)
			}
			request.ByText()
			assert.Equal(t, "EVAL", request.Name)
			assert.Equal(t, s.Source, request.Args()[0])

			least := protocol.Command{Op: op, Key: "k"}
			if script(&least) != s {
				least.NotAfter = c.NotAfter
			}
			required := func(list []scripts.Argument) (n int) {
				for _, a := range list {
					if !a.Optional {
						n++
					}
				}
				return n
			}
			request.call(s, &least)
			assert.Len(t, request.Args(), 2+required(s.Keys)+required(s.Args)+packed, "%s without what may be left out", s.Name)
			assert.Equal(t, required(s.Keys), request.Args()[1], "%s", s.Name)
		}
	}
}

// TestCallNeedsEveryName: a value that is missing, or that the script does not know, is an error.
func TestCallNeedsEveryName(t *testing.T) {
	got, err := scripts.ModernTake.Call(scripts.Values{"key": "k", "fence": "f", "token": "t", "ttl": 1, "fence_ttl": 2})
	require.NoError(t, err)
	assert.Equal(t, []any{2, "k", "f", "t", 1, 2}, got)
	got, err = scripts.SweepExpire.Call(scripts.Values{"key": "k", "ttl": 1, "contents": []any{"f", "v"}})
	require.NoError(t, err)
	assert.Equal(t, []any{1, "k", 1, "f", "v"}, got)
	for _, values := range []scripts.Values{
		{"key": "k", "token": "t", "ttl": 1, "fence_ttl": 2},
		{"key": "k", "fence": "f", "token": "t", "ttl": 1},
		{"key": "k", "fence": "f", "token": "t", "ttl": 1, "fence_ttl": 2, "value": 3},
	} {
		_, err := scripts.ModernTake.Call(values)
		assert.Error(t, err, "%v", values)
	}
	_, err = scripts.BridgeRelease.Call(scripts.Values{"key": "k", "guard": "g", "yield": "s", "queue": "q", "value": "v", "gap": 0, "held": 1, "behind": 0, "breath": 0, "entry": "e"})
	assert.ErrorContains(t, err, "hand before held")
}

// TestGraceIsRoundedUp: a grace that is cut to whole milliseconds would be a shorter one.
func TestGraceIsRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]int64{-1: -1, -time.Hour: -1, 0: 0, 1: 1, time.Millisecond: 1, 1500 * time.Microsecond: 2, time.Second: 1000} {
		assert.Equal(t, want, grace(d), "%v", d)
	}
}

// What a waiter is to hear of goes to the server behind a command that has an answer at once.
func TestWantedReleaseIsAnsweredLast(t *testing.T) {
	r, err := RequestOf(protocol.Command{Op: protocol.QueueRelease, Key: "k", Value: "a", Queue: "{k}:q", Wanted: true})
	if err != nil || !r.AnswerLast {
		t.Errorf("%+v, %v", r, err)
	}
	if r, _ = RequestOf(protocol.Command{Op: protocol.QueueRelease, Key: "k", Value: "a", Queue: "{k}:q"}); r.AnswerLast {
		t.Error("though nobody waits")
	}
}

// TestExplain names what a server's refusal leaves out: the keys, the command of a script, the channel.
func TestExplain(t *testing.T) {
	var release Request
	release.call(scripts.CompareDel, &protocol.Command{Key: "lock:a", Value: "token"})
	source, _, _ := strings.Cut(scripts.CompareDel.Source, "'DEL'")
	line := fmt.Sprintf("@user_script:%d", strings.Count(source, "\n")+1)
	get := Plain("GET", "lock:a")
	publish := Plain("PUBLISH", "lockmigrate:wake:x", "m")
	for _, c := range []struct {
		request Request
		refusal redis.Error
		names   string
	}{
		{get, "NOPERM this user has no permissions to access one of the keys used as arguments", `"lock:a"`},
		{release, "NOPERM this user has no permissions to access one of the keys used as arguments", `"lock:a"`},
		{release, "ERR The user executing the script can't run this command or subcommand script: x, on " + redis.Error(line) + ".", "compare_del.lua runs DEL"},
		{release, "ERR Error running script (call to f_x): " + redis.Error(line) + ": The user executing the script can't run this command or subcommand", "compare_del.lua runs DEL"},
		{release, "ERR The user executing the script can't run this command or subcommand", "one of them the user may not run"},
		{publish, "NOPERM this user has no permissions to access one of the channels used as arguments", `"lockmigrate:wake:x"`},
	} {
		got := c.request.Explain(c.refusal)
		assert.ErrorContains(t, got, c.names)
		var refused redis.Error
		assert.True(t, errors.As(got, &refused))
		assert.Equal(t, c.refusal, refused)
	}
	other := redis.Error("WRONGTYPE Operation against a key holding the wrong kind of value")
	assert.Equal(t, error(other), release.Explain(other))
	assert.NoError(t, release.Explain(nil))
}
