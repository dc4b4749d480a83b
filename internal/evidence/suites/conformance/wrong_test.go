package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// wrong is one thing done wrong: by other scripts, by other words of a command, or in what the holder is told.
type wrong struct {
	fails       map[string]string // the cases at which it must, and how what is seen there begins
	tellsNobody bool
	scripts     map[string]string                                     // Lua that runs in a script's place, see inPlaceOf
	words       func(s *scripts.Script, words []string) (to []string) // of each script
}

func (w *wrong) deaf() bool { return w != nil && w.tellsNobody }

// wrongs are the implementations that the kit must find.
var wrongs = map[string]*wrong{
	"release-without-compare": {fails: map[string]string{"release-foreign": "ok"}, scripts: map[string]string{"bridge_release": "redis.call('DEL', key, guard) return 1"}},
	"no-deadline":             {fails: map[string]string{"cut-off": "nothing"}, tellsNobody: true},
	"near-value": {fails: map[string]string{"bridge-value": "no: ", "old-ahead": "ok"}, scripts: map[string]string{ // its true expiry, 3 s ahead when it is first seen
		"bridge_acquire": nearValue, "bridge_settle": nearValue, "bridge_renew": nearValue, "bridge_release": nearValue,
	}},
	"no-settle": {fails: map[string]string{"takeover-loser": "ok"}, scripts: map[string]string{"bridge_settle": "return {1, 0, 0, ''}"}},
	"no-withdrawal": {fails: map[string]string{"takeover-loser": "ok"}, scripts: map[string]string{"bridge_settle": `local reply = script()
		if reply[1] ~= -1 then return reply end ` + takes + ` return {1, 0, 0, ''}`}},
	"renewal-without-guard": {fails: map[string]string{"renewed": "absent"}, scripts: map[string]string{"bridge_renew": "redis.call('PEXPIRE', key, ttl) return {1}"}},
	"renewal-unconditional": {fails: map[string]string{"displaced": "nothing"}, scripts: map[string]string{"bridge_renew": takes + " return {1}"}},
	"no-renewal":            {fails: map[string]string{"renewed": "absent"}, scripts: map[string]string{"bridge_renew": "return {1}"}},
	"ttl-missing":           {fails: map[string]string{"ttl": "-1"}, scripts: map[string]string{"bridge_acquire": "local reply = script() redis.call('PERSIST', key) return reply"}},
	"no-grace":              {fails: map[string]string{"old-behind": "ok"}, scripts: map[string]string{"bridge_acquire": "ARGV[at.rules] = string.gsub(rules, '^%d+', '0') return script()"}},
	"takes-foreign": {fails: map[string]string{"foreign-value": "ok"}, scripts: map[string]string{"bridge_acquire": `local reply = script()
		if reply[1] ~= -1 then return reply end
		redis.call('DEL', key)
		return script()`}},
	"lost-reply-is-refused": {fails: map[string]string{"lost-acquire": "refused"}, words: once("bridge_acquire", "value", "EVAL", "return {0, 0, 1000, '5', 0}", "0")},
	"no-place-in-queue": {fails: map[string]string{"queue-order": "0"}, scripts: map[string]string{"bridge_acquire": `for i = #ARGV, at.entry, -1 do ARGV[i] = nil end
		return script()`}},
	"fence-falls": {fails: map[string]string{"fence-rises": "9"}, scripts: map[string]string{"bridge_acquire": `local reply = script()
		if reply[1] > 0 then reply[2] = 1e15 - now end
		return reply`}},
	"never-reports": {fails: map[string]string{"listed": "not listed"}, words: unbound, scripts: map[string]string{"stage_join": `ARGV[at.not_after] = '0'
		local reply = script() -- it asks for the record, acts by it, and tells nobody
		if not_after ~= '0' and #reply > 2 then reply[1], reply[3] = 1, reply[2] + 2000 end
		return reply`}},
	"ignores-moves": {fails: map[string]string{"stopped-member": "legacy"}, words: unbound, scripts: map[string]string{"stage_join": `local kept = redis.call('GET', 'kept')
		if kept then -- it reports once, and acts by what it was told then
			local reply = cmsgpack.unpack(kept)
			reply[2], reply[3] = now, now + 2000
			return reply
		end
		local reply = script()
		if reply[1] == 1 then redis.call('SET', 'kept', cmsgpack.pack(reply)) end
		return reply`}},
	"no-bound": {fails: map[string]string{"late-command": "2"}, words: unbound},
	"own-clock": {fails: map[string]string{"clock-behind": "32"}, words: func(s *scripts.Script, words []string) []string {
		if i := place(s, words, "not_after"); i >= 0 && words[i] != "0" {
			words[i] = strconv.FormatInt(time.Now().Add(2*time.Second).UnixMilli(), 10)
		}
		return words
	}},
	"loads-scripts-once": {fails: map[string]string{"scripts-flushed": "failed: "}, words: func(s *scripts.Script, words []string) []string {
		if words[0] == "EVAL" {
			return loadsOnce(s, words)
		}
		return words
	}},
}

const (
	nearValue = `redis.call('SET', 'near:' .. value, now + 3000, 'NX')
		ARGV[at.value] = redis.call('GET', 'near:' .. value)
		return script()`
	takes = "redis.call('SET', key, value, 'PX', ttl) redis.call('SET', guard, value, 'PX', ttl)" // whatever they hold
)

// loadsOnce has the server know each of these scripts for as long as it keeps them.
var loadsOnce = once("bridge_", "", "THE-SCRIPT-HAS-GONE")

// once sends the scripts whose names begin so the first time with each value of an argument, and then other words.
func once(name, argument string, then ...string) func(*scripts.Script, []string) []string {
	var sent sync.Map
	return func(s *scripts.Script, words []string) []string {
		if !strings.HasPrefix(s.Name, name) {
			return words
		}
		value := ""
		if i := place(s, words, argument); i >= 0 {
			value = words[i]
		}
		if _, again := sent.LoadOrStore(s.Name+value, true); again {
			return then
		}
		return words
	}
}

// unbound sends a command that may act whenever it comes.
func unbound(s *scripts.Script, words []string) []string {
	if i := place(s, words, "not_after"); i >= 0 && !strings.HasPrefix(s.Name, "stage_") {
		words[i] = "0"
	}
	return words
}

// place is where a script's argument stands among the words; -1 where it does not.
func place(s *scripts.Script, words []string, name string) int {
	keys, _ := strconv.Atoi(words[2])
	i := slices.IndexFunc(s.Args, func(a scripts.Argument) bool { return a.Name == name })
	if i < 0 || 3+keys+i >= len(words) {
		return -1
	}
	return 3 + keys + i
}

// rewrite is for what goes to the server.
func (w *wrong) rewrite(words []string) []string {
	if command := strings.ToUpper(words[0]); command != "EVALSHA" && command != "EVAL" {
		return words
	}
	s, words := scripts.Of(words[1]), slices.Clone(words)
	if s == nil {
		return words
	}
	if body := w.scripts[strings.TrimSuffix(s.Name, ".lua")]; body != "" {
		words[0], words[1] = "EVAL", inPlaceOf(s, body)
	}
	if w.words != nil {
		words = w.words(s, words)
	}
	return words
}

// inPlaceOf is Lua in which script() is a script. Its keys and arguments have their names, at has an argument's place, and now is the time.
func inPlaceOf(s *scripts.Script, body string) string {
	var keys, args, at []string
	for _, key := range s.Keys {
		keys = append(keys, key.Name)
	}
	for i, a := range s.Args {
		args, at = append(args, a.Name), append(at, fmt.Sprintf("%s = %d", a.Name, i+1))
	}
	return fmt.Sprintf("local %s = unpack(KEYS) local %s = unpack(ARGV) local at = {%s} local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"+
		"local function script()\n%s\nend\n%s", strings.Join(keys, ", "), strings.Join(args, ", "), strings.Join(at, ", "), s.Source, body)
}
