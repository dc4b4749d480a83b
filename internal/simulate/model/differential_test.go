package model_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// The model and a server get the same random command sequences, each on keys of its own, and must
// answer alike. Scripts see the server's clock in milliseconds. It is asked for between any two commands, and is the model's. A
// sequence is compared up to the first command in which a millisecond ends. LOCKMIGRATE_SEQUENCES says how many; the documentation uses 1000000.
func TestAgreesWithRealServer(t *testing.T) {
	agree(t, redistest.Real(t).Addr, sequences(t, 20000), false, func(s []question) []question { return s })
}

func TestAgreesWithMiniredis(t *testing.T) {
	redistest.Unraced(t)
	s := redistest.Mini(t)
	s.Mini.SetTime(time.Now()) // its clock stands: no millisecond ends
	agree(t, s.Addr, sequences(t, redistest.Rounds(500, 3000)), true, withoutSecondWatch)
}

// withoutSecondWatch leaves out what miniredis does differently from Redis: a second WATCH of a key
// makes it forget that the key was touched after the first. No machine watches a key twice. It keeps no counts either.
func withoutSecondWatch(sequence []question) []question {
	var kept []question
	watched := false
	for _, q := range sequence {
		switch {
		case q.special == 'r':
			continue
		case q.special != 0:
		case q.command.Op == protocol.Watch && watched:
			continue
		case q.command.Op == protocol.Watch:
			watched = true
		case q.command.Op == protocol.Unwatch, q.command.Op == protocol.Commit:
			watched = false
		}
		kept = append(kept, q)
	}
	return kept
}

func sequences(t *testing.T, usual int) int {
	if s := os.Getenv("LOCKMIGRATE_SEQUENCES"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		return n
	}
	return usual
}

const batch = 500 // sequences in one pipeline

func agree(t *testing.T, addr string, count int, noStats bool, known func([]question) []question) {
	conn, err := redis.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	for _, s := range scripts.All() {
		_, err := conn.Do("SCRIPT", "LOAD", s.Source)
		require.NoError(t, err)
	}
	listener, err := redis.Dial("tcp", addr)
	require.NoError(t, err)
	defer listener.Close()
	require.NoError(t, listener.Send("SUBSCRIBE", heard, protocol.SidecarChannel("s1")))
	require.NoError(t, listener.Flush())
	for range 2 {
		_, err = listener.Receive()
		require.NoError(t, err)
	}
	go func() { // the messages themselves are not compared, but must not fill the server's buffers
		for {
			if _, err := listener.Receive(); err != nil {
				return
			}
		}
	}()

	start := time.Now()
	commands := 0
	seen := coverage{}
	whole := count >= 20000
	// A busy server ends milliseconds within more commands, and less of each sequence is compared: until every answer was, it goes on.
	for at := 0; at < count || whole && at < 10*count && seen.missing() != ""; at += batch {
		commands += agreeBatch(t, conn, at, batch, noStats, known, seen)
		_, err := conn.Do("FLUSHDB")
		require.NoError(t, err)
	}
	require.True(t, !whole || seen.missing() == "", seen.missing())
	t.Logf("%d sequences, %d commands compared, %.0f a second", count, commands, float64(commands)/time.Since(start).Seconds())
	require.Greater(t, commands, count/2, "too few were compared")
}

// question is a command, or one of the things that only the test does.
type question struct {
	command protocol.Command
	special byte // 's' asks for the state of the lock, 'x' ends its TTL, 'r' resets the server's counts
}

func agreeBatch(t *testing.T, conn redis.Conn, first, n int, noStats bool, known func([]question) []question, seen coverage) int {
	var questions []question
	var ends []int
	for i := range n {
		g := rand.New(rand.NewPCG(uint64(first+i), 7))
		sequence := known(random(g, fmt.Sprintf("k%d", first+i)))
		questions = append(questions, sequence...)
		ends = append(ends, len(questions))
	}
	require.NoError(t, conn.Send("TIME"))
	for i := range questions {
		require.NoError(t, ask(conn, &questions[i]))
		require.NoError(t, conn.Send("TIME"))
	}
	require.NoError(t, conn.Flush())

	now := told(t, conn)
	at, compared := 0, 0
	for i, end := range ends {
		store := model.Store{Listening: listening, NoStats: noStats}
		var past pastNumbers
		var pastServer pastNumbers
		known := true // the millisecond in which each command of this sequence ran
		for ; at < end; at++ {
			q := &questions[at]
			reply, began := hear(conn, q), now
			now = told(t, conn)
			known = known && began/1e6 == now/1e6
			if !known {
				continue
			}
			got, want := normal(q, reply, &pastServer), normal(q, answer(&store, began, q), &past)
			if got != want {
				t.Fatalf("sequence %d: the server says %+v, the model %+v\n%s", first+i, got, want, script(questions, ends, i, at))
			}
			seen.note(q, &want)
			compared++
		}
	}
	return compared
}

// told is the server's clock, in the reply to a TIME.
func told(t *testing.T, conn redis.Conn) protocol.Instant {
	reply, err := redis.Int64s(conn.Receive())
	require.NoError(t, err)
	return protocol.Instant(reply[0]*1e9 + reply[1]*1e3)
}

// coverage counts the answers by operation and code: what was never answered was not compared.
type coverage map[string]int

func (c coverage) note(q *question, r *protocol.Reply) {
	if q.special == 0 {
		code := r.Int
		if r.Kind != protocol.Integer || q.command.Op == protocol.Queue {
			code = 0
		}
		c[fmt.Sprintf("%d/%d/%d", q.command.Op, r.Kind, code)]++
	}
}

// missing names an answer that was never compared.
func (c coverage) missing() string {
	codes := map[protocol.Op][]int64{
		protocol.BridgeTake:   {protocol.TakeFree, protocol.TakeOver, protocol.TakeMine, protocol.TakeHeld, protocol.TakeForeign, protocol.TakeRefused},
		protocol.BridgeSettle: {protocol.SettleDone, protocol.SettleAgain, protocol.SettleLeft, protocol.SettleLost},
		protocol.BridgeExtend: {protocol.RenewDone, protocol.RenewRepair, protocol.RenewTheirs, protocol.RenewLost},
		protocol.BridgeDrop:   {protocol.DropDone, protocol.DropRepaired, protocol.DropTheirs, protocol.DropNothing, protocol.DropHanded},
		protocol.SidecarTake:  {0, 1}, protocol.SidecarDel: {0, 1}, protocol.SidecarRun: {0, 1},
		protocol.SidecarKeep:  {protocol.KeepDone, protocol.KeepRepair, protocol.KeepTheirs, protocol.KeepNothing, protocol.KeepOld},
		protocol.QueueRelease: {0, 1, 2}, protocol.Take: {0, 1}, protocol.Extend: {0, 1}, protocol.RedissonRelease: {0, 1},
		protocol.CompareDel: {0, 1}, protocol.CompareSet: {0, 1}, protocol.SetNX: {0, 1}, protocol.Del: {0, 1},
	}
	for op, list := range codes {
		for _, code := range list {
			if c[fmt.Sprintf("%d/%d/%d", op, protocol.Integer, code)] == 0 {
				return fmt.Sprintf("op %d never answered %d", op, code)
			}
		}
	}
	return ""
}

const heard = "heard"

func listening(channel string) int {
	if channel == heard || channel == protocol.SidecarChannel("s1") {
		return 1
	}
	return 0
}

// state is the lock's TTL, in whole units of whichTTL, how many wait, its guard, and which keys beside it have no TTL.
const state = `local left, endless = redis.call('PTTL', KEYS[1]), ''
if left >= 0 then left = math.floor((left + 5e8) / 1e9) end
for _, name in ipairs(ARGV) do if redis.call('PTTL', KEYS[1] .. name) == -1 then endless = endless .. name end end
return left .. '/' .. redis.call('ZCARD', KEYS[1] .. ARGV[1]) .. '/' .. (redis.call('GET', KEYS[1] .. ARGV[2]) or 'none') .. '/' .. endless`

// ask sends a question without waiting for its answer.
func ask(conn redis.Conn, q *question) error {
	switch q.special {
	case 's':
		return conn.Send("EVAL", state, 1, q.command.Key, ":q", ":g", ":f", ":y", ":r")
	case 'r':
		return conn.Send("CONFIG", "RESETSTAT")
	case 'x':
		return conn.Send("EVAL", "if redis.call('PTTL', KEYS[1]) >= 0 then redis.call('DEL', KEYS[1]) end return 0", 1, q.command.Key)
	case 0:
		if q.command.Op == protocol.SidecarRun {
			return conn.Send("EVAL", runs(&q.command)...)
		}
		fallthrough
	default:
		_, err := wire.Do(sender{conn}, time.Minute, q.command)
		return err
	}
}

// runs is what follows EVAL for a command or a script within sidecar_run.lua.
func runs(c *protocol.Command) []any {
	request, _ := wire.RequestOf(*c.Sidecar.Runs)
	text, words := scripts.SidecarRun.Bare(), append([]any{request.Name}, request.Args()...)
	if request.Script != nil {
		text, words = scripts.SidecarRun.Around(request.Script.Source), request.Args()[3:]
	}
	args := append([]any{text, 4, c.Key, c.Guard, c.Record, c.Key + ":q"}, words...)
	return append(args, fmt.Sprintf("%s %d %d run .1", c.Sidecar.Name, int64(c.Sidecar.Now)/1e6, c.TTL.Milliseconds()))
}

// hear reads the answer, in the order of asking.
func hear(conn redis.Conn, q *question) protocol.Reply {
	if q.special != 0 || q.command.Op == protocol.SidecarRun {
		raw, err := conn.Receive()
		reply, _ := wire.Translate(raw, err)
		return reply
	}
	reply, _ := wire.Do(receiver{conn}, time.Minute, q.command)
	return reply
}

// sender lets package wire send a command without waiting, receiver lets it read the reply later:
// together they make a pipeline of what is written as calls.
type sender struct{ redis.Conn }

func (s sender) DoWithTimeout(_ time.Duration, name string, args ...any) (any, error) {
	return nil, s.Send(name, args...)
}
func (s sender) ReceiveWithTimeout(time.Duration) (any, error) { return nil, nil }

type receiver struct{ redis.Conn }

func (r receiver) Send(name string, _ ...any) error {
	if name != "MULTI" { // package wire reads that answer itself
		_, _ = r.Receive() // QUEUED
	}
	return nil
}
func (r receiver) DoWithTimeout(time.Duration, string, ...any) (any, error) { return r.Receive() }
func (r receiver) ReceiveWithTimeout(time.Duration) (any, error)            { return r.Receive() }

func answer(store *model.Store, now protocol.Instant, q *question) protocol.Reply {
	switch q.special {
	case 's':
		key := q.command.Key
		left, guard, endless := int64(-2), "none", ""
		if e, ok := store.Look(now, key); ok && e.ExpireMS == 0 {
			left = -1
		} else if ok {
			left = whichTTL(e.ExpireMS - int64(now)/1e6)
		}
		queue, _ := store.Look(now, key+":q")
		if e, ok := store.Look(now, key+":g"); ok {
			guard = e.Value
		}
		for _, name := range []string{":q", ":g", ":f", ":y", ":r"} {
			if e, ok := store.Look(now, key+name); ok && e.ExpireMS == 0 {
				endless += name
			}
		}
		return protocol.Reply{Kind: protocol.Text, Text: fmt.Sprintf("%d/%d/%s/%s", left, len(queue.Fields), guard, endless)}
	case 'r':
		return protocol.Reply{Kind: protocol.Text, Text: "OK"} // of a store that has counted nothing yet
	case 'x':
		if e, ok := store.Look(now, q.command.Key); ok && e.ExpireMS != 0 {
			store.Exec(now, 1, 0, &protocol.Command{Op: protocol.Del, Key: e.Key})
		}
		return protocol.Reply{Kind: protocol.Integer}
	default:
		return store.Exec(now, 1, 0, &q.command)
	}
}

// pastNumbers makes numbers that are drawn from a clock comparable: only their order counts.
type pastNumbers struct{ fence int64 }

func (p *pastNumbers) rank(n int64) int64 {
	if n == 0 {
		return 0
	}
	grown := n > p.fence
	p.fence = max(p.fence, n)
	if grown {
		return 1
	}
	return 2
}

// normal reduces a reply to what must be equal: remaining times to the TTL that they come from,
// errors to their class, and numbers from the clock to their order.
func normal(q *question, r protocol.Reply, past *pastNumbers) protocol.Reply {
	if r.Kind == protocol.Fault {
		return protocol.Reply{Kind: r.Kind, Text: strconv.FormatBool(strings.Contains(r.Text, "WRONGTYPE"))}
	}
	if ms, err := strconv.ParseInt(r.Text, 10, 64); err == nil && time.Since(time.UnixMilli(ms)).Abs() < 10*time.Hour {
		r.Text = "now" // the state of a courtesy
	}
	if fields := strings.Fields(r.Text); len(fields) == 11 { // the state of the gaps, which has times of the clock and what follows from them
		for i, field := range fields {
			fields[i] = fromNow(field, 500*time.Second)
		}
		if credit, err := strconv.ParseFloat(fields[2], 64); err == nil { // it may be earned by the time between two commands
			fields[2] = fmt.Sprintf("%.0f00000", math.Round(credit/100_000))
		}
		r.Text = strings.Join(fields, " ")
	}
	switch {
	case q.command.Op == protocol.SidecarKeep && (r.Int == protocol.KeepDone || r.Int == protocol.KeepRepair || r.Int == protocol.KeepTheirs):
		r.Int2 = (r.Int2 + 100_000) / 1_000_000 // milliseconds, which time makes fewer
	case q.command.Op == protocol.RedissonTake:
		r.Int = whichTTL(r.Int)
	case r.Kind == protocol.Integer && (q.command.Op == protocol.Take || q.command.Op == protocol.Queue):
		if r.Int == 1 {
			r.Int2 = past.rank(r.Int2)
		} else {
			r.Int2 = whichTTL(r.Int2)
			r.Int3 = min(r.Int3, 1)
		}
	case r.Kind == protocol.Integer && (q.command.Op == protocol.BridgeTake || q.command.Op == protocol.BridgeSettle):
		if r.Int > 0 || q.command.Op == protocol.BridgeSettle {
			r.Int2 = past.rank(r.Int2)
		}
		r.Int3, r.Int4 = whichTTL(r.Int3/1000*1000), min(r.Int4, 1)
	}
	return r
}

// fromNow writes a moment that is not far away in whole units from now, and any other time without what a run adds to it.
func fromNow(text string, unit time.Duration) string {
	n, err := strconv.ParseInt(text, 10, 64)
	if left := time.Until(time.UnixMilli(n)); err == nil && left.Abs() < 100000*unit {
		return fmt.Sprintf("%d from now", left.Round(unit)/unit)
	}
	if magnitude := max(n, -n); err == nil && magnitude >= 100_000 && magnitude < 1e11 {
		return fmt.Sprintf("%.0f00000", math.Round(float64(n)/100_000))
	}
	return text
}

func whichTTL(ms int64) int64 {
	if ms < 0 {
		return ms
	}
	const unit = 1000000 * 1000
	return (ms + unit/2) / unit
}

func script(questions []question, ends []int, i, at int) string {
	begin := 0
	if i > 0 {
		begin = ends[i-1]
	}
	var b strings.Builder
	for _, q := range questions[begin : at+1] {
		fmt.Fprintf(&b, "  %q %+v %+v\n", q.special, q.command, q.command.Sidecar)
	}
	return b.String()
}
