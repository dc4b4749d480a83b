package protocol

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMachines plays testdata/machines.txt. A line is a machine with its settings, and its turns: what it is told, at which time, and what it must want
// then. Behind the last stands what it must say of itself.
//
//	ModernAcquire Key=k TTL=10s: @1s begins > SetToken | @3s OK > Acquired | Deadline=11s
//
// A legacy machine begins at 1,000,000 s, and time passes with each round trip: a nanosecond, which is less than a unit of any dialect but one, or its sleep. Of its commands the values
// are compared too. A reply of up to four numbers is the script's; a name stands for a code of it. "let NAME = ..." names a machine with settings.
func TestMachines(t *testing.T) {
	text, err := os.ReadFile("testdata/machines.txt")
	require.NoError(t, err)
	named := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if name, is, found := strings.Cut(strings.TrimPrefix(line, "let "), " = "); found {
			named[name] = strings.Fields(is)
			continue
		}
		head, turns, _ := strings.Cut(line, ": ")
		words := strings.Fields(head)
		if is := named[words[0]]; is != nil {
			words = slices.Concat(is, words[1:])
		}
		m := machines[words[0]]()
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, "=")
			set(t, reflect.ValueOf(m).Elem(), strings.Split(name, "."), value)
		}
		now, legacy := Instant(0), strings.HasPrefix(words[0], "Legacy")
		if legacy {
			now = Instant(1_000_000 * time.Second)
		}
		for turn := range strings.SplitSeq(turns, " | ") {
			told, want, plays := strings.Cut(turn, " > ")
			if !plays {
				name, want, _ := strings.Cut(turn, "=")
				assert.Equal(t, want, says(m, name), "%s: %s", line, name)
				continue
			}
			if at, rest, found := strings.Cut(told, " "); found && at[0] == '@' {
				d, err := time.ParseDuration(at[1:])
				require.NoError(t, err, line)
				now, told = Instant(0).Add(d), rest
			}
			step := m.Next(now, replied(t, told))
			require.Equal(t, want, wants(step), "%s: told %s", line, told)
			if legacy {
				now = now.Add(max(step.Sleep, 1))
			}
		}
	}
}

var machines = map[string]func() Machine{
	"LegacyAcquire": func() Machine { return &LegacyAcquire{} }, "LegacyRenew": func() Machine { return &LegacyRenew{} }, "LegacyRelease": func() Machine { return &LegacyRelease{} },
	"BridgeAcquire": func() Machine { return &BridgeAcquire{} }, "BridgeRenew": func() Machine { return &BridgeRenew{} }, "BridgeRelease": func() Machine { return &BridgeRelease{} },
	"ModernAcquire": func() Machine { return &ModernAcquire{} }, "ModernQueue": func() Machine { return &ModernQueue{} }, "ModernLeave": func() Machine { return &ModernLeave{} },
	"ModernRenew": func() Machine { return &ModernRenew{} }, "ModernRelease": func() Machine { return &ModernRelease{} }, "ModernConfirm": func() Machine { return &ModernConfirm{} },
}

// set sets a field by its name, or by those of fields in fields.
func set(t *testing.T, v reflect.Value, path []string, value string) {
	field := v.FieldByName(path[0])
	switch of := field.Interface().(type) {
	case time.Duration:
		d, err := time.ParseDuration(value)
		require.NoError(t, err)
		field.SetInt(int64(d))
	case Instant:
		d, err := time.ParseDuration(value)
		require.NoError(t, err)
		field.SetInt(int64(d))
	case Release:
		field.Set(reflect.ValueOf(Release(slices.Index(Releases, value))))
	case *Dialect:
		d, err := DialectNamed(value)
		require.NoError(t, err)
		field.Set(reflect.ValueOf(d))
	case string:
		field.SetString(value)
	case bool:
		field.SetBool(value == "true")
	case int:
		n, err := strconv.Atoi(value)
		require.NoError(t, err)
		field.SetInt(int64(n))
	default:
		require.Greater(t, len(path), 1, "%T", of)
		set(t, field, path[1:], value)
	}
}

// says is what a machine's method says, or a field.
func says(m Machine, name string) string {
	var got any
	if method := reflect.ValueOf(m).MethodByName(name); method.IsValid() {
		got = method.Call(nil)[0].Interface()
	} else {
		got = reflect.ValueOf(m).Elem().FieldByName(name).Interface()
	}
	if at, ok := got.(Instant); ok {
		got = time.Duration(at)
	}
	return fmt.Sprint(got)
}

var (
	// with are those of which the values are compared.
	with = map[Op]string{
		SetNX: "SETNX", Get: "GET", GetSet: "GETSET", Del: "DEL", Watch: "WATCH", Unwatch: "UNWATCH", Commit: "MULTI/SET/EXEC", CompareDel: "CompareDel", CompareSet: "CompareSet",
	}
	ops = map[Op]string{
		BridgeTake: "take", BridgeSettle: "settle", BridgeExtend: "extend", BridgeDrop: "drop", SetToken: "SetToken", Take: "Take", Queue: "Queue",
		Unqueue: "Unqueue", Extend: "Extend", QueueRelease: "QueueRelease", WaitReplicas: "WaitReplicas",
		RedissonTake: "RedissonTake", RedissonExtend: "RedissonExtend", RedissonRelease: "RedissonRelease",
	}
	verdicts = map[Verdict]string{
		Acquired: "Acquired", Busy: "Busy", Foreign: "Foreign", Ghost: "Ghost", Failed: "Failed", Unsure: "Unsure", Renewed: "Renewed", Repaired: "Repaired",
		Displaced: "Displaced", Lost: "Lost", Released: "Released", NotOurs: "NotOurs", Threw: "Threw",
	}
	replies = map[string]Reply{
		"begins": {}, "OK": {Kind: Text, Text: "OK"}, "nil": {Kind: Nil}, "silence": {Kind: Silence}, "silence-for-good": {Kind: Silence, Over: true}, "woke": {Kind: Woke}, "changed": {Kind: Changed},
		"READONLY": {Kind: Fault, Text: "READONLY"}, "WRONGTYPE": {Kind: Fault, Text: "ERR Error running script: @user_script: 20: WRONGTYPE Operation against a key"},
		"broken": {Kind: Fault, Text: "ERR The user executing the script can't run this command or subcommand script: 0a, on @user_script:7."}, // one that had begun
	}
	codes = map[string]int64{
		"free": TakeFree, "over": TakeOver, "held": TakeHeld, "mine": TakeMine, "foreign": TakeForeign, "refused": TakeRefused,
		"settled": SettleDone, "again": SettleAgain, "left": SettleLeft, "lost": SettleLost, "dropped": DropDone, "nothing": DropNothing, "theirs": DropTheirs,
	}
)

func wants(s Step) string {
	switch s.Kind {
	case Done:
		return verdicts[s.Verdict]
	case Sleep:
		return "sleep " + s.Sleep.String()
	}
	if name := with[s.Command.Op]; name != "" {
		return strings.Join(strings.Fields(name+" "+s.Command.Old+" "+s.Command.Value), " ")
	}
	return ops[s.Command.Op]
}

func replied(t *testing.T, told string) Reply {
	words := strings.Fields(told)
	if r, known := replies[words[0]]; known {
		return r
	}
	switch kind, text, _ := strings.Cut(told, " "); kind {
	case "text":
		return Reply{Kind: Text, Text: text}
	case "fault":
		return Reply{Kind: Fault, Text: text}
	}
	r := Reply{Kind: Integer}
	if words[0] == "granted" {
		r.Kind, words = Granted, words[1:]
	}
	for i, word := range words {
		if i == 1 && words[0] == "theirs" {
			r.Text = word
			continue
		}
		n, known := codes[word]
		if !known {
			var err error
			n, err = strconv.ParseInt(word, 10, 64)
			require.NoError(t, err, told)
		}
		*[]*int64{&r.Int, &r.Int2, &r.Int3, &r.Int4}[i] = n
	}
	return r
}

// A machine is a value: a copy runs on by itself, which the explorer relies on.
func TestMachinesForkByCopy(t *testing.T) {
	m := &LegacyAcquire{Dialect: JedisMS, Key: "k", Owner: "me", Lease: 10 * time.Second}
	m.Next(Instant(1_000_000*time.Second), Reply{})
	fork := *m
	assert.Equal(t, Acquired, m.Next(0, Reply{Kind: Integer, Int: 1}).Verdict)
	assert.Equal(t, Get, fork.Next(0, Reply{Kind: Integer}).Command.Op)
}
