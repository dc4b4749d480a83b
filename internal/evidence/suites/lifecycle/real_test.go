package lifecycle

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// TestAsARealServer: what the servers of a thousand sequences were sent has the same replies, and leaves the same keys, on a real
// server. Both get it at once: the real one as a transaction, within which nothing expires. Times may differ by as long as that takes.
func TestAsARealServer(t *testing.T) {
	real := redistest.Real(t)
	for _, s := range scripts.All() {
		real.Do("SCRIPT", "LOAD", s.Source)
	}
	const sample = 1000
	commands := 0
	for seed := range uint64(sample / len(kinds)) {
		for _, k := range kinds {
			var sent [][]string
			r := &run{plan: planOf(k, seed), held: map[*one]bool{}, seen: func(words []string) { sent = append(sent, slices.Clone(words)) }}
			world.Run(t, seed, r.play)
			sent = slices.DeleteFunc(sent, func(words []string) bool { return slices.Contains(ofConnections, words[0]) })
			commands += len(sent)
			compare(t, real, fmt.Sprintf("kind %s, seed %d", k.name, seed), sent)
			if t.Failed() {
				return
			}
		}
	}
	require.Greater(t, commands, 20*sample)
	t.Logf("%d commands", commands)
}

// ofConnections are commands about connections, or about the server, which a transaction cannot have or whose replies are its own.
var ofConnections = []string{"CLIENT", "SUBSCRIBE", "UNSUBSCRIBE", "AUTH", "SCRIPT", "KEYS", "TIME", "INFO", "WATCH", "MULTI", "EXEC", "UNWATCH", "DISCARD"}

// dump is everything that there is.
const dump = `
local all = {}
local keys = redis.call('KEYS', '*')
table.sort(keys)
local looks = {string = {'GET'}, hash = {'HGETALL'}, zset = {'ZRANGE', 0, -1, 'WITHSCORES'}}
for _, key in ipairs(keys) do
  local kind = redis.call('TYPE', key).ok
  local look = looks[kind]
  local value = redis.call(look[1], key, look[2], look[3], look[4])
  if kind == 'hash' then
    local pairs = {}
    for i = 1, #value, 2 do pairs[#pairs + 1] = value[i] .. ' = ' .. value[i + 1] end
    table.sort(pairs)
    value = pairs
  end
  all[#all + 1] = {key, value, redis.call('PTTL', key)}
end
return all`

// compare runs the commands on the real server, and on a new one of a world with the same clock.
func compare(t *testing.T, real *redistest.Server, what string, sent [][]string) {
	sent = append(append([][]string{{"TIME"}}, sent...), []string{"EVAL", dump, "0"}, []string{"TIME"})
	theirs := transaction(t, real, sent)
	begin, end := timeOf(t, theirs[0]), timeOf(t, theirs[len(theirs)-1])
	for end.Sub(begin) > shortestTTL/4 { // a claim is a third of it. A key whose time is over may be gone for a script that begins so late: that says nothing
		theirs = transaction(t, real, sent)
		begin, end = timeOf(t, theirs[0]), timeOf(t, theirs[len(theirs)-1])
	}
	world.Run(t, 0, func(w *world.World) {
		s := w.Server()
		s.KnowScripts()
		s.Offset = time.Until(begin)
		for i, words := range sent[:len(sent)-1] {
			mine, theirs := plain(words, s.Do(redis.Args{}.AddFlat(words)...)), plain(words, theirs[i])
			if i > 0 && !alike(mine, theirs, end.Sub(begin)+time.Millisecond) {
				require.Equal(w, theirs, mine, "%s: command %d: %.300q", what, i, words)
			}
		}
	})
}

// transaction runs the commands on an empty server, all at once.
func transaction(t *testing.T, real *redistest.Server, sent [][]string) []any {
	conn := real.Conn()
	defer conn.Close()
	for _, words := range append(append([][]string{{"FLUSHALL"}, {"MULTI"}}, sent...), []string{"EXEC"}) {
		require.NoError(t, conn.Send(words[0], redis.Args{}.AddFlat(words[1:])...))
	}
	require.NoError(t, conn.Flush())
	for range len(sent) + 2 {
		_, err := conn.Receive()
		require.NoError(t, err)
	}
	theirs, err := redis.Values(conn.Receive())
	require.NoError(t, err)
	require.Len(t, theirs, len(sent))
	return theirs
}

func timeOf(t *testing.T, reply any) time.Time {
	clock, err := redis.Int64s(reply, nil)
	require.NoError(t, err)
	return time.Unix(clock[0], clock[1]*1000)
}

var numbers = regexp.MustCompile(`\d+`)

// alike tells that two texts are the same but for their times, and may be apart by so much.
func alike(a, b string, apart time.Duration) bool {
	if numbers.ReplaceAllString(a, "") != numbers.ReplaceAllString(b, "") {
		return false
	}
	others := numbers.FindAllString(b, -1)
	for i, text := range numbers.FindAllString(a, -1) {
		mine, _ := strconv.ParseInt(text, 10, 64)
		theirs, _ := strconv.ParseInt(others[i], 10, 64)
		limit := apart.Milliseconds()
		switch {
		case mine < 20 || mine > 1e17: // a count; a token
			limit = 0
		case mine > 1e14: // a fencing token, which begins with the clock's microseconds
			limit = apart.Microseconds()
		}
		if max(mine-theirs, theirs-mine) > limit {
			return false
		}
	}
	return true
}

// plain is a reply as text. The fields of a hash have no order.
func plain(words []string, reply any) string {
	switch r := reply.(type) {
	case []byte:
		return string(r)
	case error:
		text, _, _ := strings.Cut(r.Error(), " script: ")
		return "error " + text
	case []any:
		all := make([]string, len(r))
		for i := range r {
			all[i] = plain(nil, r[i])
		}
		if len(words) > 0 && words[0] == "HGETALL" {
			pairs := slices.Collect(slices.Chunk(all, 2))
			slices.SortFunc(pairs, slices.Compare)
			return fmt.Sprint(pairs)
		}
		return fmt.Sprint(all)
	}
	return fmt.Sprint(reply)
}
