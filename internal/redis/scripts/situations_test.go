package scripts_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// trials are what is enough to give back, to extend, and to write another value: a script has no right to want more.
var trials = map[string]string{
	"free":         `for i = 1, ARGV[2] do local k = KEYS[i]; redis.call('GET', k); redis.call('DEL', k) end return 1`,
	"free-own":     `redis.call('HGET', KEYS[3], 'me'); for i = 1, 2 do redis.call('GET', KEYS[i]); redis.call('DEL', KEYS[i]) end return 1`,
	"keep":         `for i = 1, ARGV[2] do local k = KEYS[i]; redis.call('GET', k); redis.call('PEXPIRE', k, 10000) end return 1`,
	"keep-by-time": `redis.call('TIME'); for i = 1, 2 do redis.call('GET', KEYS[i]); redis.call('PEXPIRE', KEYS[i], 10000) end return 1`,
	"put": `for i = 1, ARGV[2] do local k = KEYS[i]
		redis.call('GET', k); redis.call('PTTL', k); redis.pcall('PERSIST', k); redis.call('SET', k, ARGV[1]) end return 1`,
	"put-ttl": `for i = 1, ARGV[2] do local k = KEYS[i]
		redis.call('GET', k); redis.call('PTTL', k); redis.pcall('PEXPIRE', k, 20000); redis.call('SET', k, ARGV[1]) end return 1`,
	"hfree": `redis.call('HEXISTS', KEYS[1], ARGV[1]); redis.call('DEL', KEYS[1]); return 1`,
	"hkeep": `redis.call('HEXISTS', KEYS[1], ARGV[1]); redis.call('PEXPIRE', KEYS[1], 10000); return 1`,
}

// situations reads testdata/situations.txt.
func situations(t *testing.T) (all []situation) {
	text, err := os.ReadFile("testdata/situations.txt")
	require.NoError(t, err)
	now, named := time.Now(), map[string]string{}
	var script *scripts.Script
	var with scripts.Values
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		switch words[0] {
		case "let":
			name, commands, _ := strings.Cut(line[len("let "):], " = ")
			named[name] = commands
			continue
		case "script":
			at := slices.IndexFunc(scripts.All(), func(s *scripts.Script) bool { return s.Name == words[1]+".lua" })
			require.GreaterOrEqual(t, at, 0, line)
			script, with = scripts.All()[at], scripts.Values{}
			continue
		case "with":
			with = values(with, wordsOf(line, now)[1:])
			continue
		}
		name, rest, _ := strings.Cut(line, " => ")
		rest, before, _ := strings.Cut(rest, " | ")
		code, further, _ := strings.Cut(rest, " : ")
		all = append(all, situationOf(t, script, values(with, wordsOf(further, now)), now))
		s := &all[len(all)-1]
		s.name, s.before = name, commandsOf(named, before, now)
		if code != "*" {
			s.code = wordsOf(code, now)[0]
		}
	}
	return all
}

// situationOf is a call of a script with values, and what they say beside it.
func situationOf(t *testing.T, script *scripts.Script, v scripts.Values, now time.Time) situation {
	beside := func(name string) string {
		value, _ := v[name].(string)
		delete(v, name)
		return value
	}
	s := situation{script: script, ours: wordsOf("$ours", now)[0], proof: beside("proof"), trial: trials[beside("may")]}
	s.locks, _ = strconv.Atoi(beside("locks"))
	call, err := script.Call(v)
	require.NoError(t, err)
	keys := call[0].(int)
	for _, key := range call[1 : 1+keys] {
		s.keys = append(s.keys, key.(string))
	}
	s.args = call[1+keys:]
	return s
}

// commandsOf are commands, or names of them, with a semicolon between.
func commandsOf(named map[string]string, text string, now time.Time) (all [][]any) {
	for command := range strings.SplitSeq(text, " ; ") {
		if others := named[command]; others != "" {
			all = append(all, commandsOf(named, others, now)...)
		} else if command != "" {
			all = append(all, boxedWords(wordsOf(command, now)))
		}
	}
	return all
}
