package world

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// Server is a server in the world. Its methods run at once, and not over the network.
type Server struct {
	Offset time.Duration        // of its clock, which TIME tells
	Seen   func(words []string) // if set, is told of each command that runs outside of a script, also of Do's

	w        *World
	number   int
	mini     *miniredis.Miniredis
	commands *server.Server

	mu      sync.Mutex // one command at a time
	clients []*client
	scripts map[string]string // by SHA-1
	calls   map[string]int    // of each command, as INFO commandstats has it
	rights  *rights           // nil: all
	full    bool              // no more memory
	down    bool
	runs    int // how often it was started again
	stopped bool
	own     *client      // of Do
	way     *Route       // of Dial
	inner   *server.Peer // of scripts
	out     bytes.Buffer
	running *running   // the script that is
	arrived chan *conn // that have commands for it
	over    chan struct{}
}

// client is a connection as the server has it.
type client struct {
	id       int
	peer     *server.Peer
	push     func(raw []byte)
	reset    func()
	channels []string // that it has subscribed to
	multi    bool
	queued   [][]string // since MULTI
	gone     atomic.Bool
}

// minis are servers of the data that no world has. To make one costs as much as a short test.
var minis = sync.Pool{New: func() any {
	m := miniredis.NewMiniRedis()
	conn, err := m.Dial() // starts it without a listener
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
	return m
}}

// Server returns a new, empty server.
func (w *World) Server() *Server {
	m := minis.Get().(*miniredis.Miniredis)
	m.FlushAll()
	m.ClockTTL(true)
	s := &Server{w: w, mini: m, commands: m.Server(), scripts: make(map[string]string), calls: make(map[string]int)}
	s.arrived, s.over = make(chan *conn, 64), make(chan struct{})
	s.own, s.inner = &client{peer: s.peer()}, s.peer()
	go s.serve()
	w.mu.Lock()
	s.number = len(w.servers)
	w.servers = append(w.servers, s)
	w.mu.Unlock()
	s.way = w.Process("the test's").Route(s)
	return s
}

// end gives the data back.
func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = true
	minis.Put(s.mini)
	close(s.over)
}

// serve runs what arrives on one goroutine: on a new one each time, the stack would grow again for each script.
func (s *Server) serve() {
	for {
		select {
		case c := <-s.arrived:
			c.arrive()
		case <-s.over:
			return
		}
	}
}

// peer returns what miniredis keeps for a connection.
func (s *Server) peer() *server.Peer { return server.NewPeer(bufio.NewWriterSize(&s.out, 64)) }

// Wire is Dial for bytes.
func (s *Server) Wire(ctx context.Context) (net.Conn, error) { return s.way.Dial(ctx, "", "") }

// Conn returns a connection of the test's own.
func (s *Server) Conn() redis.Conn {
	conn, err := s.Dial(context.Background())
	if err != nil {
		s.w.Fatal(err)
	}
	s.w.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *Server) connect(push func([]byte), reset func()) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &client{id: len(s.clients) + 1, push: push, reset: reset, peer: s.peer()}
	s.clients = append(s.clients, c)
	return c
}

// Now is the server's clock.
func (s *Server) Now() time.Time { return time.Now().Add(s.Offset) }

// Do runs a command, whatever rights and memory there are: the reply is nil, an int64, a string, a []any or an error.
func (s *Server) Do(words ...any) any {
	text := make([]string, len(words))
	for i, w := range words {
		text[i] = fmt.Sprint(w)
	}
	text[0] = strings.ToUpper(text[0])
	s.mu.Lock()
	defer s.mu.Unlock()
	rights, full := s.rights, s.full
	s.rights, s.full = nil, false
	defer func() { s.rights, s.full = rights, full }()
	reply, _ := replyFrom(s.raw(s.own, text))
	if text, ok := reply.(status); ok {
		return string(text)
	}
	return reply
}

// Value returns the string on a key, and whether there is one.
func (s *Server) Value(key string) (string, bool) {
	value, there := s.Do("GET", key).(string)
	return value, there
}

// Rights are what every client may do from now on, in the words of ACL SETUSER behind "+@all &*": patterns of keys, and commands
// that are taken away. "~*" is everything.
func (s *Server) Rights(rules string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rights = rightsOf(rules)
}

// OutOfMemory has the server refuse what takes more memory.
func (s *Server) OutOfMemory(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

// Kill ends the server: connections break, new ones are refused, and its data is gone.
func (s *Server) Kill() {
	s.mu.Lock()
	s.down, s.clients = true, nil
	s.mini.FlushAll()
	clear(s.scripts)
	clear(s.calls)
	s.mu.Unlock()
	s.w.each(s, (*Route).Cut)
}

// Start starts it again, empty.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = false
	s.runs++
}

// Replaced makes the server another process, as after a failover. Its keys stay.
func (s *Server) Replaced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
}

// Freeze stops the server, until thaw: it accepts connections, and answers nothing.
func (s *Server) Freeze() (thaw func()) {
	s.stop(true)
	return func() { s.stop(false) }
}

func (s *Server) stop(stopped bool) {
	s.mu.Lock()
	s.stopped = stopped
	s.mu.Unlock()
	s.w.each(s, func(r *Route) { r.set(func(s *state) { s.stopped = stopped }) })
}

func (s *Server) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

func (s *Server) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// Route returns a way to the server from a new process.
func (s *Server) Route(process string) *Route { return s.w.Process(process).Route(s) }

// Pool returns a pool of connections to which nothing happens.
func (s *Server) Pool() *redis.Pool { return &redis.Pool{MaxIdle: 16, DialContext: s.Dial} }

// Dial makes a connection to which nothing happens.
func (s *Server) Dial(ctx context.Context) (redis.Conn, error) {
	return redis.DialContext(ctx, "tcp", "", redis.DialContextFunc(s.way.Dial))
}

// run runs a client's command and returns the reply's bytes.
func (s *Server) run(c *client, words []string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down || c.gone.Load() {
		return nil
	}
	return bytes.Clone(s.raw(c, words))
}

// raw runs a command; the bytes are good until the next one. The caller holds mu.
func (s *Server) raw(c *client, words []string) []byte {
	s.out.Reset()
	if refusal := s.refuses(words, s.full); refusal != "" {
		return encode(nil, refusal)
	}
	s.count(words)
	if s.Seen != nil {
		s.Seen(words)
	}
	args := words[1:]
	if raw := s.transaction(c, words); raw != nil {
		return raw
	}
	switch words[0] {
	case "EVAL", "EVALSHA":
		return encode(nil, s.eval(c, words))
	case "SCRIPT":
		if len(args) == 2 && strings.EqualFold(args[0], "LOAD") {
			return encode(nil, s.load(args[1]))
		}
		if strings.EqualFold(args[0], "FLUSH") {
			clear(s.scripts)
			return encode(nil, status("OK"))
		}
	case "AUTH":
		return encode(nil, status("OK"))
	case "ACL":
		if len(args) == 1 && strings.EqualFold(args[0], "WHOAMI") {
			return encode(nil, "default")
		}
	case "CLIENT":
		if len(args) == 1 && strings.EqualFold(args[0], "ID") {
			return encode(nil, int64(c.id))
		}
		if len(args) > 1 && strings.EqualFold(args[0], "PAUSE") { // of all commands, whatever the mode
			ms, _ := strconv.Atoi(args[1])
			go func() { time.AfterFunc(time.Duration(ms)*time.Millisecond, s.Freeze()) }()
			return encode(nil, status("OK"))
		}
		if len(args) > 2 && strings.EqualFold(args[0], "KILL") && strings.EqualFold(args[1], "TYPE") {
			return encode(nil, s.disconnect(c, strings.EqualFold(args[2], "pubsub")))
		}
	case "SUBSCRIBE":
		return s.subscribe(c, args)
	case "UNSUBSCRIBE":
		return s.unsubscribe(c, args)
	case "PUNSUBSCRIBE": // of patterns, which nobody here has
		return encode(nil, []any{"punsubscribe", nil, int64(len(c.channels))})
	case "PING":
		if len(c.channels) > 0 {
			return encode(nil, []any{"pong", ""})
		}
	}
	if reply, mine := s.small(c, words); mine {
		return encode(nil, reply)
	}
	return s.dispatch(c.peer, words)
}

// transaction runs what is about MULTI, and queues what is behind it. miniredis has no scripts in transactions, but knows what WATCH
// has seen.
func (s *Server) transaction(c *client, words []string) []byte {
	switch {
	case words[0] == "MULTI":
		c.multi = true
		return encode(nil, status("OK"))
	case !c.multi:
		return nil
	case words[0] == "DISCARD":
		c.multi, c.queued = false, nil
		s.dispatch(c.peer, []string{"UNWATCH"})
		return encode(nil, status("OK"))
	case words[0] != "EXEC":
		c.queued = append(c.queued, words)
		return encode(nil, status("QUEUED"))
	}
	queued := c.queued
	c.multi, c.queued = false, nil
	s.dispatch(c.peer, []string{"MULTI"})
	if reply, _ := replyFrom(s.dispatch(c.peer, words)); reply == nil {
		return encode(nil, nil)
	}
	replies := make([]any, len(queued))
	for i, words := range queued {
		replies[i], _ = replyFrom(s.raw(c, words))
	}
	return encode(nil, replies)
}

// small runs the commands that a script may call, and miniredis does not have or has otherwise.
func (s *Server) small(c *client, words []string) (reply any, mine bool) {
	args := words[1:]
	switch words[0] {
	case "TIME":
		now := s.Now()
		return []any{strconv.FormatInt(now.Unix(), 10), strconv.Itoa(now.Nanosecond() / 1000)}, true
	case "PUBLISH":
		return s.publish(args[0], args[1]), true
	case "PUBSUB":
		if len(args) == 2 && strings.EqualFold(args[0], "NUMSUB") {
			return []any{args[1], s.listeners(args[1], nil)}, true
		}
	case "INFO":
		return s.info(), true
	case "CLUSTER":
		return fault("ERR This instance has cluster support disabled"), true
	}
	return nil, false
}

// dispatch has miniredis run a command.
func (s *Server) dispatch(p *server.Peer, words []string) []byte {
	s.out.Reset()
	s.commands.Dispatch(p, words)
	p.Flush()
	return s.out.Bytes()
}

// count counts a command.
func (s *Server) count(words []string) { s.calls[words[0]]++ }

// Commands is how many it has run since it was started, those within scripts and the test's own too.
func (s *Server) Commands() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, calls := range s.calls {
		n += calls
	}
	return n
}

func (s *Server) info() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Server\r\nredis_version:7.0.15\r\nrun_id:run%d\r\n", s.runs)
	b.WriteString("# Cluster\r\ncluster_enabled:0\r\n# Commandstats\r\n")
	for name, calls := range s.calls {
		fmt.Fprintf(&b, "cmdstat_%s:calls=%d,usec=%d,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n", strings.ToLower(name), calls, calls)
	}
	return b.String()
}

// ours are the scripts of this module, by their SHA-1.
var ours = sync.OnceValue(func() map[string]string {
	all := make(map[string]string)
	for _, s := range scripts.All() {
		all[shaOf(s.Source)] = s.Source
	}
	return all
})

// KnowScripts has the server know all scripts of this module, as one does that is in use.
func (s *Server) KnowScripts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.scripts, ours())
}

func shaOf(source string) string {
	sum := sha1.Sum([]byte(source))
	return hex.EncodeToString(sum[:])
}

func (s *Server) load(source string) string {
	sha := shaOf(source)
	s.scripts[sha] = source
	return sha
}

// disconnect resets the connections that listen, or all others but one.
func (s *Server) disconnect(me *client, listen bool) (n int64) {
	for _, c := range s.clients {
		if c != me && !c.gone.Load() && listen == (len(c.channels) > 0) {
			c.reset()
			n++
		}
	}
	return n
}

func (s *Server) subscribe(c *client, channels []string) (raw []byte) {
	for _, channel := range channels {
		if !slices.Contains(c.channels, channel) {
			c.channels = append(c.channels, channel)
		}
		raw = encode(raw, []any{"subscribe", channel, int64(len(c.channels))})
	}
	return raw
}

func (s *Server) unsubscribe(c *client, channels []string) (raw []byte) {
	if len(channels) == 0 {
		channels = slices.Clone(c.channels)
	}
	if len(channels) == 0 {
		return encode(nil, []any{"unsubscribe", nil, int64(0)})
	}
	for _, channel := range channels {
		c.channels = slices.DeleteFunc(c.channels, func(name string) bool { return name == channel })
		raw = encode(raw, []any{"unsubscribe", channel, int64(len(c.channels))})
	}
	return raw
}

func (s *Server) publish(channel, message string) int64 {
	raw := encode(nil, []any{"message", channel, message})
	return s.listeners(channel, func(c *client) { c.push(raw) })
}

// listeners calls each with those who have subscribed to a channel, and counts them.
func (s *Server) listeners(channel string, each func(c *client)) (n int64) {
	for _, c := range s.clients {
		if !slices.Contains(c.channels, channel) || c.gone.Load() {
			continue
		}
		n++
		if each != nil {
			each(c)
		}
	}
	return n
}
