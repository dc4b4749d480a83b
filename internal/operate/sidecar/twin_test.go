package sidecar_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

var (
	twinPrograms = flag.Int("programs", 10_000, "how many programs TestTwin runs")
	twinFirst    = flag.Uint64("first", 1, "the number of the first one; -programs 1 runs it alone, in the dialect and stage that -run names")
)

// TestTwin holds the contract of docs/sidecar.md. Random programs run on a bare server and through sidecars: two to five clients of one or
// two services, all lock commands with their options, scripts that take, renew and free, MULTI, WATCH, other types on the key, a direct
// client's GETSET, and time that passes. Before and after each command the two have the same state, and they have the same replies.
// Each difference is one of the list, which this test counts, or it fails. It prints the smallest program that shows it.
//
// Both are one real server, whose clock the test moves: the bare server is the keys that no sidecar covers.
func TestTwin(t *testing.T) {
	w := newWorld(t)
	all := w.sites(t, "")
	counts := map[string]int{}
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			found := s.search(t, *twinFirst, (*twinPrograms+len(all)-1)/len(all), counts)
			if found != nil {
				t.Fatalf("program %d differs in a way that is not on the list: %s\n%s", found.seed, found.why, found)
			}
			if s.stage == stages.Legacy {
				require.Zero(t, s.differences, "stage legacy has no list")
			}
		})
	}
	t.Logf("%d commands compared; programs that met a difference of the list: %v", w.compared, counts)
}

// world is the server of both.
type world struct {
	server   *redistest.Clocked
	ahead    atomic.Int64 // the clock of all
	conn     *wireConn
	compared int
	keys     int
}

func newWorld(t *testing.T) *world {
	w := &world{server: redistest.NewClocked(t)}
	w.conn = w.dial(t)
	return w
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }

func (w *world) pass(d time.Duration) {
	w.server.Step(d)
	w.ahead.Add(int64(d))
}

// site is a dialect at a stage: a namespace, and two services with a sidecar each.
type site struct {
	*world
	name        string
	stage       stages.Stage
	dialect     *protocol.Dialect // nil: none
	fleet       string            // the namespace's
	services    [2]proxy.Rewriter
	owners      [2]string // what the records call them
	commands    map[string]proxy.Keys
	plant       func(r *run, conn *wireConn, client int, words []string) bool // a fault: it sends something else
	differences int
	ends        int // of locks, by D1
}

// sites makes them all, or the one of a name.
func (w *world) sites(t *testing.T, only string) (all []*site) {
	for _, stage := range []stages.Stage{stages.Legacy, stages.Bridge, stages.Modern} {
		for i, d := range append(protocol.Dialects(), nil, protocol.RedisPyFloat) {
			name, fleet := sidecar.DialectNone, "jedis-ms"
			switch {
			case i > len(protocol.Dialects()): // in a fleet of another dialect, which cannot read its texts
				name = d.Name + " in " + fleet
			case d != nil:
				name, fleet = d.Name, d.Name
			}
			if d != nil && d.Layout == protocol.FSTLong || only != "" && only != stage.String()+"/"+name {
				continue // a sidecar does not translate the first
			}
			s := &site{world: w, name: stage.String() + "/" + name, stage: stage, dialect: d, fleet: fleet}
			namespace := s.namespace()
			store := &stages.Store{Pool: w.server.Pool(), Namespace: namespace, ReplyTimeout: time.Minute}
			require.NoError(t, store.Init(t.Context(), stages.Record{Namespace: namespace, Stage: stage, Patterns: []string{namespace + ":*"}, Dialect: fleet, Shortest: time.Second}))
			for i := range s.services {
				_, s.services[i] = w.service(t, strings.Fields(name)[0], sidecar.Options{Pool: w.server.Pool(), Namespace: namespace, Name: fmt.Sprint("s", i)})
				s.owners[i] = fmt.Sprintf("%s/s%d", namespace, i)
			}
			s.commands = s.services[0].Commands()
			s.load(w)
			all = append(all, s)
		}
	}
	return all
}

// service is the sidecar of a service: a member for ten thousand hours, whose keeper would only disturb.
func (w *world) service(t *testing.T, dialect string, opts sidecar.Options) (*sidecar.Sidecar, proxy.Rewriter) {
	opts.MemberLease, opts.Lease, opts.Clock, opts.Hold = 10_000*time.Hour, 10_000*time.Second, w.now, -1
	one, err := sidecar.New(t.Context(), opts)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- one.Run(ctx) }()
	require.NoError(t, one.Joined(t.Context()))
	cancel()
	<-ended
	r, err := one.Rewriter(dialect)
	require.NoError(t, err)
	return one, r
}

// load has the scripts of the programs loaded.
func (s *site) load(servers ...*world) {
	for _, text := range []string{takeScript, freeScript, renewScript, wrongScript} {
		for _, w := range servers {
			w.server.Do("SCRIPT", "LOAD", text)
		}
		for _, service := range s.services {
			c := &proxy.Client{}
			service.Open(c)
			service.Rewrite(c, [][]byte{[]byte("SCRIPT"), []byte("LOAD"), []byte(text)}, nil)
		}
	}
}

// program is what the clients do, in one order.
type program struct {
	seed     uint64
	services []int // of the clients
	steps    []step
	own      bool // the clients have connections of their own: for WATCH
	why      string
	ended    string // the difference of the list that ended the comparison
	mixed    bool
}

// step is what a client sends at once: one command, or MULTI with its EXEC. Client -1 is a direct one. Before it there may be a pause: the k-th one of a
// program has a length that follows from its number.
type step struct {
	client   int
	commands [][]string
	pause    bool
}

// String prints a program so that it can be read and replayed.
func (p *program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "program %d, clients of services %v\n", p.seed, p.services)
	spell := 0
	for _, s := range p.steps {
		if s.pause {
			fmt.Fprintf(&b, "  %v pass\n", pauses[(int(p.seed)+spell)%len(pauses)])
			spell++
		}
		who := "direct"
		if s.client >= 0 {
			who = fmt.Sprint("client ", s.client)
		}
		for _, c := range s.commands {
			fmt.Fprintf(&b, "  %s: %q\n", who, c)
		}
	}
	return b.String()
}

// The words that stand for something in a program: K and L are lock keys, O is none, and @... are texts:
// @5 is a time 5 seconds ahead, @5+3 one that another thread writes 3 milliseconds later, @ever stands for no end, @number looks like a token.
const (
	takeScript  = "if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 else return 0 end"
	freeScript  = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
	renewScript = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end"
	wrongScript = "return redis.call('lpush', KEYS[1], 'x')"
)

var pauses = []time.Duration{8 * time.Second, 27 * time.Second, 130 * time.Second}

// random makes a program.
func random(seed uint64) *program {
	g := rand.New(rand.NewPCG(seed, 28))
	p := &program{seed: seed}
	for range 2 + g.IntN(4) {
		p.services = append(p.services, 0)
	}
	if g.IntN(3) == 0 {
		p.mixed = true
		for i := range p.services {
			p.services[i] = g.IntN(2)
		}
	}
	of := func(list ...string) string { return list[g.IntN(len(list))] }
	text := func() string {
		return of("@5", "@20", "@20", "@100", "@5+1", "@20+2", "@100+3", "@ever", "@number", "@-5", "1", "host-7", "x y")
	}
	ms := func() string { return of("5000", "20000", "100000") }
	sec := func() string { return of("5", "20", "100") }
	command := func() []string {
		switch n := g.IntN(68); {
		case n < 13:
			return []string{"SETNX", "K", text()}
		case n < 16:
			return []string{"SET", "K", text(), "NX"}
		case n < 22:
			return []string{"GETSET", "K", text()}
		case n < 28:
			return []string{"GET", "K"}
		case n < 36:
			return []string{of("DEL", "DEL", "UNLINK"), "K"}
		case n < 38:
			return []string{"SET", "K", text(), "NX", "PX", ms()}
		case n < 42:
			return []string{of("EXPIRE", "EXPIRE"), "K", of(sec(), sec(), "-1", "x")}
		case n < 44:
			return []string{"PEXPIRE", "K", ms()}
		case n == 44:
			return []string{"PEXPIRE", "K", strconv.Itoa(30_000 + g.IntN(60_000)), of("NX", "XX", "GT", "LT")}
		case n == 45:
			return []string{"PERSIST", "K"}
		case n < 48:
			return []string{"EVAL", takeScript, "1", "K", text(), ms()}
		case n < 50:
			return []string{"EVAL", freeScript, "1", "K", text()}
		case n < 51:
			return []string{"EVAL", renewScript, "1", "K", text(), ms()}
		case n == 51:
			return []string{"EVALSHA", of(freeScript, takeScript, wrongScript), "1", "K", text(), ms()}
		case n == 52:
			return []string{"EVAL", wrongScript, "2", "L", "K"}
		case n == 53:
			return []string{"SET", "K", text(), of("XX", "GET", "KEEPTTL", "nx")}
		case n == 54:
			return [][]string{{"SET", "K", text()}, {"SET", "K", text(), "PX", ms()}, {"SETEX", "K", sec(), text()}, {"SET", "K", text(), "XX", "EX", sec()}}[g.IntN(4)]
		case n == 55:
			return []string{of("INCR", "DECR", "GETDEL"), "K"}
		case n == 56:
			return [][]string{{"APPEND", "K", "0"}, {"SETRANGE", "K", "1", "9"}, {"INCRBY", "K", "5"}, {"GETEX", "K", "PX", ms()}}[g.IntN(4)]
		case n == 57:
			return [][]string{{"MSET", "K", text(), "O", "1"}, {"MSETNX", "O", "1", "K", text()}, {"DEL", "O", "K"}, {"DEL", "K", "L"}}[g.IntN(4)]
		case n == 58:
			return [][]string{{"RENAME", "K", "L"}, {"RENAME", "L", "K"}, {"COPY", "K", "O", "REPLACE"}, {"RENAMENX", "O", "K"}}[g.IntN(4)]
		case n == 59:
			return [][]string{{"RPUSH", "K", "x"}, {"HSET", "K", "f", "1"}, {"SADD", "K", "m"}, {"ZADD", "K", "1", "m"}}[g.IntN(4)]
		case n == 60:
			return [][]string{{"SETNX", "K"}, {"GET"}, {"EXPIRE", "K"}, {"SET", "K", "v", "NX", "XX"}, {"SET", "K", "v", "PX", "x"}, {"SETEX", "K", "0", "v"}, {"GETSET", "K", "a", "b"}}[g.IntN(7)]
		case n == 61:
			return []string{of("SETNX", "DEL", "GET"), "L", text()}[:2+g.IntN(2)]
		case n == 62:
			return []string{"SETNX", "L", text()}
		case n == 63:
			return []string{of("EXISTS", "EXISTS", "TYPE"), of("K", "L")}
		case n == 64:
			return []string{of("DEL", "UNLINK"), "K", "L"}
		case n < 67:
			return []string{"SET", "K", text()}
		}
		return []string{"DEL", "L"}
	}
	direct := func() string { // a number that a service has written is the service's token, whoever writes it again
		if t := text(); t != "@number" {
			return t
		}
		return "@20"
	}
	p.own = g.IntN(12) == 0
	watching := -1
	for range 3 + g.IntN(12) {
		s := step{client: g.IntN(len(p.services)), pause: len(p.steps) > 0 && g.IntN(6) == 0}
		switch n := g.IntN(24); {
		case n == 0 && !p.own:
			s.client, s.commands = -1, [][]string{{"GETSET", "K", direct()}}
		case n == 2 && !p.own:
			s.client, s.commands = -1, [][]string{{of("SETNX", "SETNX", "DEL"), "K", direct()}}
			if s.commands[0][0] == "DEL" {
				s.commands[0] = s.commands[0][:2]
			}
		case n == 1:
			s.commands = [][]string{{"MULTI"}}
			for range 1 + g.IntN(3) {
				s.commands = append(s.commands, command())
			}
			s.commands = append(s.commands, []string{of("EXEC", "EXEC", "EXEC", "DISCARD")})
		case p.own && watching < 0 && n < 8:
			watching = s.client
			s.commands = [][]string{{"WATCH", "K"}, {"GET", "K"}}
		case p.own && watching >= 0 && n < 10:
			s.client = watching
			watching = -1
			s.commands = [][]string{{"MULTI"}, command(), {"EXEC"}}
		default:
			s.commands = [][]string{command()}
		}
		p.steps = append(p.steps, s)
	}
	return p
}

// wireConn is a connection on which commands are sent together.
type wireConn struct {
	net.Conn
	replies redis.Conn
	out     []byte
}

func (w *world) dial(t *testing.T) *wireConn {
	conn, err := net.Dial("tcp", w.server.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &wireConn{Conn: conn, replies: redis.NewConn(conn, 0, 0)}
}

// read reads a reply as text.
func (c *wireConn) read() string {
	reply, err := c.replies.Receive()
	if err != nil {
		reply = err
	}
	return asText(reply)
}

func asText(reply any) string {
	switch v := reply.(type) {
	case nil:
		return "nil"
	case []byte:
		return string(v)
	case string:
		return "+" + v
	case redis.Error:
		return "-" + v.Error()
	case error:
		panic(v)
	case []any:
		all := make([]string, len(v))
		for i := range v {
			all[i] = asText(v[i])
		}
		return "[" + strings.Join(all, "|") + "]"
	}
	return fmt.Sprint(reply)
}

func (c *wireConn) send(words ...string) { c.out = wire.Append(c.out, words...) }

// flush writes what was sent, while the caller reads.
func (c *wireConn) flush() {
	out := c.out
	c.out = nil
	go func() { _, _ = c.Write(out) }()
}
