package proxy

import (
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

var counting = NewScript("return redis.call('INCR', KEYS[1])")

// scripting calls a script in place of SETNX on a lock's key.
var scripting = locks{func(c *Client, args [][]byte, out []byte) (Verdict, []byte) {
	if name := string(args[0]); name != "SETNX" {
		c.Multi = name == "MULTI"
		return Pass, out
	}
	return Replace, AppendCall(out, c, counting, "1", string(args[1]))
}}

// The server forgets all scripts again and again. No client hears of it, in RESP2 or RESP3, alone, in a pipeline or a transaction, with
// replies of other kinds around; and each call is executed once.
func TestNoClientHearsOfAMissingScript(t *testing.T) {
	server := redistest.Real(t)
	_, addr := start(t, server.Addr, scripting)
	stop := make(chan struct{})
	var flushing, load sync.WaitGroup
	defer flushing.Wait()
	defer close(stop)
	flushing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				server.Do("SCRIPT", "FLUSH")
				server.Do("SET", "noise", "x")
			}
		}
	})
	for i := range 8 {
		conn := dial(t, addr)
		load.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			key, n, early := fmt.Sprint("lock.", i), 0, ""
			if i%4 == 3 {
				_, _ = conn.Write(wire.Append(wire.Append(nil, "HELLO", "3"), "CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "noise")) // what changes there is pushed
				for got := ""; !strings.Contains(got, "+OK\r\n"); {                                                                    // pushes may follow at once
					b := make([]byte, 4096)
					n, err := conn.Read(b)
					if !assert.NoError(t, err) {
						return
					}
					got += string(b[:n])
					_, early, _ = strings.Cut(got, "+OK\r\n")
				}
			}
			for turn := range 300 {
				var text []byte
				var want strings.Builder
				call := func() {
					text = wire.Append(text, "SETNX", key, "x")
				}
				answer := func() {
					n++
					fmt.Fprintf(&want, ":%d\r\n", n)
				}
				switch r.IntN(6) {
				case 0, 1:
					call()
					answer()
				case 2:
					for range 3 {
						call()
						answer()
					}
				case 3:
					text = wire.Append(text, "MULTI")
					call()
					text = wire.Append(text, "EXEC")
					want.WriteString("+OK\r\n+QUEUED\r\n*1\r\n")
					answer()
				case 4:
					text = wire.Append(text, "ECHO", "-NOSCRIPT x\r\n")
					want.WriteString("$13\r\n-NOSCRIPT x\r\n\r\n")
					call()
					answer()
				case 5:
					text = wire.Append(text, "EVALSHA", strings.Repeat("0", 40), "0")
					want.WriteString("-NOSCRIPT No matching script. Please use EVAL.\r\n") // the client's own
					call()
					answer()
				}
				last := "turn " + strconv.Itoa(turn)
				cut := r.IntN(len(text))
				_, _ = conn.Write(text[:cut])
				if r.IntN(2) == 0 {
					time.Sleep(50 * time.Microsecond)
				}
				_, _ = conn.Write(text[cut:])
				if r.IntN(2) == 0 { // else more comes before the reply
					time.Sleep(200 * time.Microsecond)
				}
				_, _ = conn.Write(wire.Append(nil, "ECHO", last))
				fmt.Fprintf(&want, "$%d\r\n%s\r\n", len(last), last)
				_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
				got, raw := "", []byte(early)
				early = ""
				for !strings.HasSuffix(got, last+"\r\n") {
					room := make([]byte, 4096)
					k, err := conn.Read(room)
					if !assert.NoError(t, err, "%q", raw) {
						return
					}
					raw = append(raw, room[:k]...)
					got = string(raw)
					if whole := strings.LastIndex(got, ">2\r\n"); whole >= 0 && !push.MatchString(got[whole:]) {
						continue // half a push
					}
					got = push.ReplaceAllString(got, "")
				}
				if !assert.Equal(t, want.String(), got) {
					return
				}
			}
			assert.Equal(t, strconv.Itoa(n), server.Value(key))
		})
	}
	load.Wait()
}

// push is what the server sends by itself.
var push = regexp.MustCompile(`>2\r\n\$10\r\ninvalidate\r\n\*1\r\n\$5\r\nnoise\r\n`)

// Replies are counted, however what the server sends is cut.
func TestRepliesAreCounted(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var value func(deep int) string
	value = func(deep int) string {
		many := func(kind string, n int) string {
			out := kind + strconv.Itoa(n) + "\r\n"
			for range n * (1 + strings.Count("%|", kind)) {
				out += value(deep + 1)
			}
			return out
		}
		kinds := 14
		if deep > 2 {
			kinds = 9
		}
		switch r.IntN(kinds) {
		case 0:
			return "+OK\r\n"
		case 1:
			return "-ERR " + strings.Repeat("long ", 20) + "\r\n"
		case 2:
			return ":-12\r\n"
		case 3:
			return "$-1\r\n"
		case 4:
			return "*-1\r\n"
		case 5:
			return "_\r\n"
		case 6:
			return []string{",1.5\r\n", "#t\r\n", "(123456789012345678901234567890123456789\r\n"}[r.IntN(3)]
		case 7, 8:
			n := r.IntN(40)
			return []string{"$", "=", "!"}[r.IntN(3)] + strconv.Itoa(n) + "\r\n" + strings.Repeat("*$\r\n"[r.IntN(4):][:1], n) + "\r\n"
		case 9, 10:
			return many("*", r.IntN(4))
		case 11:
			return many("~", r.IntN(4))
		case 12:
			return many("%", r.IntN(3))
		default:
			return many("|", r.IntN(2)) + value(deep+1)
		}
	}
	for range 2000 {
		stream, want := "", 0
		for range r.IntN(6) {
			if r.IntN(4) == 0 {
				stream += ">2\r\n" + value(1) + value(1)
			} else {
				stream += value(0)
				want++
			}
		}
		for _, most := range []int{1, 7, len(stream) + 1} {
			var f replies
			got := 0
			for rest := []byte(stream); len(rest) > 0; {
				n := min(len(rest), 1+r.IntN(most))
				for piece := rest[:n]; len(piece) > 0; {
					used, ended := f.next(piece)
					if piece = piece[used:]; ended {
						got++
					}
				}
				rest = rest[n:]
			}
			require.Equal(t, want, got, "%q", stream)
			require.True(t, f.between())
		}
	}
}

// What the server sends by itself may come before the word that a script is missing, and both in pieces. The word alone is taken out.
func TestAPushBeforeAMissingScript(t *testing.T) {
	const pushed, missing, late = ">2\r\n+x\r\n:1\r\n", "-NOSCRIPT No matching script.\r\n", ":7\r\n"
	stream := pushed + missing + pushed + late
	for cut := range len(stream) {
		up, server := net.Pipe()
		sent := make(chan string, 1)
		go func() {
			b := make([]byte, 1000)
			n, _ := server.Read(b)
			sent <- string(b[:n])
		}()
		c := &conn{server: &Server{}, up: newPeer(up), again: AppendCall(nil, &Client{Alone: true}, counting, "0"), news: make(chan struct{}, 1)}
		c.called.Store(counting)
		var b buffer
		got, held := "", 0
		for _, piece := range []string{stream[:cut], stream[cut:]} {
			b.n += copy(b.room(), piece)
			if held = c.count(&b, held); held == b.n {
				got += string(b.bytes())
				b.n, held = 0, 0
			}
		}
		require.Equal(t, pushed+pushed+late, got, "cut at %d", cut)
		require.Equal(t, string(AppendCall(nil, &Client{}, counting, "0")), <-sent)
		require.EqualValues(t, 1, c.answered.Load())
		require.True(t, c.settled())
		_, _ = up.Close(), server.Close()
	}
}
