package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/modern"
)

// TestScriptOnARealServer runs testdata/real/*.txtar: what the embedded server cannot show. Each has a Redis server of its own, $SERVER, which is
// also the one of its command lines. Beside exits and redis there are
//
//	member NAMESPACE USER NAME TTL   starts a Go member, and waits until it may act
//	locks NAME KEY                   it takes a lock and gives it back
//	refused NAME KEY                 it does not get a lock
//	works NAMESPACE KEY              starts a Go member that locks a key again and again
//	busy NAME KEY                    a member does so
//	leaves NAME                      it ends
//	reported N                       waits until the namespace orders has so many members, which all run its record
//	cluster MASTERS REPLICAS         starts a cluster in place of the server, with so many replicas of each master: $M0 and so on, $R0 the first
//	                                 one's replica, and $K0 a key of the first one. $SERVER is $M0
//	sentinels REPLICAS SENTINELS     starts a master, $M0, its replicas, $R0 and so on, and sentinels, $S0 and so on
//	failover                         a replica of the first master, $R0 in a cluster, takes over: $NEW
//	crash ADDRESS                    kills a server
//	revive ADDRESS                   starts it again
//	another NAME                     starts another server: its address is $NAME
//	free NAME                        $NAME is an address that nobody listens at
//	at ADDRESS COMMAND word...       sends a command there; its reply becomes stdout
//	refuses ADDRESS                  nobody listens there
//	page PATTERN URL                 waits until a page's status and text match, which become stdout
//	shares NAME ADDRESS KEY          an old client at that address and a member keep each other out
//	mover NAME NAMESPACE OLD         starts a Go member of a handover from package modern on OLD to the script's server, and waits until it may act
//	each COMMAND word...             sends a command to each master and replica; stdout has a reply a line
//	until PATTERN COMMAND word...    sends a command until its reply, or its error, matches
//	turns NAME ADDRESS KEY           starts an old client that takes a lock and gives it back, again and again; $NAME is its address
//	tokens ADDRESS KEY               the same of a client that locks by SET NX PX; the server may refuse it
//	thieves ADDRESS KEY              the same of three clients, of which one deletes another's lock
//	rest                             ends all turns
//	start lockmigrate word...        runs a command line beside the script
//	await PATTERN                    waits until its stdout matches
//	interrupt                        ends it
//	ends CODE                        waits for its end, and wants that exit code
func TestScriptOnARealServer(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	if signal.Ignored(syscall.SIGHUP) { // by nohup: programs that a script starts must not inherit that
		heard := make(chan os.Signal, 1)
		signal.Notify(heard, syscall.SIGHUP)
		t.Cleanup(func() { signal.Stop(heard) })
	}
	cmds := map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "redis": sendRedis}
	for name, do := range onReal {
		cmds[name] = func(ts *testscript.TestScript, _ bool, args []string) {
			on := ts.Value(stageKey{}).(*realStage)
			on.TestScript = ts
			do(on, args)
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/real",
		Setup: func(env *testscript.Env) error {
			t := env.T().(testing.TB)
			server := redistest.Real(t)
			env.Values[stageKey{}] = &realStage{operator: operator{t, server.URL()}, all: []*redistest.Server{server}, members: map[string]lockmigrate.Locker{}}
			env.Setenv("SERVER", server.Addr)
			env.Setenv("LOCKMIGRATE_REDIS", server.URL())
			setTimes(env)
			return nil
		},
		Cmds:      cmds,
		Condition: func(suite string) (bool, error) { return redistest.Wanted(suite), nil },
	})
}

type stageKey struct{}

// realStage is what a script on real servers works with.
type realStage struct {
	*testscript.TestScript
	operator
	members  map[string]lockmigrate.Locker
	nodes    []*redistest.Server // masters and replicas
	all      []*redistest.Server // these, and sentinels
	failover func() *redistest.Server
	run      *running
	rest     []func() // of the clients that take turns
}

var onReal = map[string]func(on *realStage, args []string){
	"member": func(on *realStage, args []string) {
		ttl, err := time.ParseDuration(args[3])
		on.Check(err)
		on.members[args[2]] = service(on.t, as(on.t, on.Getenv("SERVER"), args[1]), func(o *compat.Options) { o.Namespace, o.Member, o.TTL = args[0], args[2], ttl })
	},
	"locks": func(on *realStage, args []string) {
		on.Check(on.members[args[0]].Do(context.Background(), bytesOf(args[1]), func(context.Context) error { return nil }))
	},
	"refused": func(on *realStage, args []string) {
		if _, err := on.members[args[0]].TryAcquire(context.Background(), bytesOf(args[1])); err == nil {
			on.Fatalf("it has got the lock")
		}
	},
	"works": func(on *realStage, args []string) {
		on.busy(service(on.t, on.pool(), func(o *compat.Options) { o.Namespace = args[0] }), args[1])
	},
	"busy":     func(on *realStage, args []string) { on.rest = append(on.rest, on.busy(on.members[args[0]], args[1])) },
	"leaves":   func(on *realStage, args []string) { on.Check(on.members[args[0]].Close()) },
	"reported": func(on *realStage, args []string) { on.reported(on.number(args[0])) },
	"cluster": func(on *realStage, args []string) {
		c := redistest.NewCluster(on.t, on.number(args[0]), on.number(args[1]))
		var replicas []*redistest.Server
		for i := range c.Masters {
			on.Setenv(fmt.Sprint("K", i), ownedBy(c, i))
			replicas = append(replicas, c.Replicas[i]...)
		}
		on.failover = func() *redistest.Server { c.Failover(replicas[0]); return replicas[0] }
		on.play(c.URL(), map[string][]*redistest.Server{"M": c.Masters, "R": replicas})
	},
	"sentinels": func(on *realStage, args []string) {
		g := redistest.NewSentinels(on.t, on.number(args[0]), on.number(args[1]))
		on.failover = g.Failover
		on.play(g.URL(), map[string][]*redistest.Server{"M": g.Servers[:1], "R": g.Servers[1:], "S": g.Sentinels})
	},
	"failover": func(on *realStage, _ []string) { on.Setenv("NEW", on.failover().Addr) },
	"crash": func(on *realStage, args []string) {
		on.all[slices.IndexFunc(on.all, func(s *redistest.Server) bool { return s.Addr == args[0] })].Kill()
	},
	"revive": func(on *realStage, args []string) {
		on.all[slices.IndexFunc(on.all, func(s *redistest.Server) bool { return s.Addr == args[0] })].Start()
	},
	"another": func(on *realStage, args []string) {
		s := redistest.Real(on.t)
		on.all = append(on.all, s)
		on.Setenv(args[0], s.Addr)
	},
	"free": func(on *realStage, args []string) { on.Setenv(args[0], redistest.FreeAddr(on.t)) },
	"at": func(on *realStage, args []string) {
		reply, err := askRedis(args[0], args[1:])
		on.Check(err)
		fmt.Fprintln(on.Stdout(), reply)
	},
	"refuses": func(on *realStage, args []string) {
		if _, err := askRedis(args[0], []string{"PING"}); !errors.Is(err, syscall.ECONNREFUSED) {
			on.Fatalf("%v", err)
		}
	},
	"page": func(on *realStage, args []string) {
		pattern, text := regexp.MustCompile(args[0]), ""
		redistest.Await(on.t, args[0], func() bool {
			var code int
			code, text = fetch("http://" + args[1])
			text = fmt.Sprintln(code, text)
			return pattern.MatchString(text)
		})
		fmt.Fprint(on.Stdout(), text)
	},
	"mover": func(on *realStage, args []string) {
		pool := func(addr string) lockmigrate.Pool {
			return &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", addr) }}
		}
		here := on.Getenv("SERVER")
		old, err := modern.New(pool(args[2]), modern.Options{})
		on.Check(err)
		new, err := modern.New(pool(here), modern.Options{})
		on.Check(err)
		m, err := handover.New(pool(here), handover.Options{Namespace: args[1], Old: old, New: new, Lease: 2 * time.Second})
		on.Check(err)
		on.t.Cleanup(func() { _, _, _ = m.Close(), old.Close(), new.Close() })
		on.Check(m.Ready(context.Background()))
		on.members[args[0]] = m
	},
	"shares": func(on *realStage, args []string) {
		member, key := on.members[args[0]], args[2]
		client := func(want int64, words ...string) {
			if reply, err := askRedis(args[1], words); err != nil || reply != want {
				on.Fatalf("%q: %v %v", words, reply, err)
			}
		}
		client(1, "SETNX", key, inMS(time.Minute))
		if _, err := member.TryAcquire(context.Background(), key); err == nil {
			on.Fatalf("both are inside")
		}
		client(1, "DEL", key)
		held, err := member.Acquire(context.Background(), key)
		on.Check(err)
		client(0, "SETNX", key, inMS(time.Minute))
		on.Check(held.Release(context.Background()))
	},
	"each": func(on *realStage, args []string) {
		for _, s := range on.nodes {
			reply, err := askRedis(s.Addr, args)
			on.Check(err)
			fmt.Fprintln(on.Stdout(), reply)
		}
	},
	"until": func(on *realStage, args []string) {
		pattern := regexp.MustCompile(args[0])
		redistest.Await(on.t, args[0], func() bool {
			reply, err := askRedis(on.Getenv("SERVER"), args[1:])
			return pattern.MatchString(fmt.Sprint(reply, err))
		})
	},
	"turns": func(on *realStage, args []string) {
		on.Setenv(args[0], on.turns(args[1], 1, func(conns []redis.Conn) { turn(conns[0], args[2]) }))
	},
	"tokens": func(on *realStage, args []string) {
		on.turns(args[0], 1, func(conns []redis.Conn) { _, _ = conns[0].Do("SET", args[1], "token", "NX", "PX", 10) })
	},
	"thieves": func(on *realStage, args []string) {
		key := args[1]
		on.turns(args[0], 3, func(conns []redis.Conn) {
			first, second, thief := conns[0], conns[1], conns[2]
			turn(thief, key) // a DEL of somebody who never locks could be another connection of the holder's pool
			_, _ = first.Do("SETNX", key, inMS(30*time.Second))
			_, _ = thief.Do("DEL", key)
			turn(second, key)
			_, _ = first.Do("DEL", key)
		})
	},
	"watched": func(on *realStage, args []string) { // MONITOR runs on a server, and turns go on
		began := int64(0)
		redistest.Await(on.t, "turns on "+args[0]+" while MONITOR runs", func() bool {
			list, err := askRedis(args[0], []string{"CLIENT", "LIST"})
			info, infoErr := askRedis(args[0], []string{"INFO", "commandstats"})
			if err != nil || infoErr != nil || !strings.Contains(fmt.Sprint(list), "cmd=monitor") {
				return false
			}
			calls := endpoint.CallsOf(endpoint.InfoOf(fmt.Sprint(info))["cmdstat_setnx"]).Calls
			began = cmp.Or(began, calls)
			return calls > began+1
		})
	},
	"rest": func(on *realStage, _ []string) {
		for _, rest := range on.rest {
			rest()
		}
	},
	"start":     func(on *realStage, args []string) { on.run = start(on.t, on.Getenv, args[1:]...) },
	"await":     func(on *realStage, args []string) { on.run.await(args[0]) },
	"interrupt": func(on *realStage, _ []string) { on.run.stop() },
	"ends": func(on *realStage, args []string) {
		code := on.run.wait()
		fmt.Fprint(on.Stdout(), on.run.out.String())
		fmt.Fprint(on.Stderr(), on.run.diagnostics.String())
		if code != on.number(args[0]) {
			on.Fatalf("it ends with %d", code)
		}
	},
}

// busy has a member lock a key again and again, until rest or the script's end.
func (on *realStage) busy(member lockmigrate.Locker, key string) (rest func()) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	rest = func() { stop(); <-ended }
	on.t.Cleanup(rest)
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = member.Do(ctx, key, func(context.Context) error { return nil })
			_ = lifetime.Sleep(ctx, 20*time.Millisecond)
		}
	}()
	return rest
}

func (on *realStage) number(text string) int {
	n, err := strconv.Atoi(text)
	on.Check(err)
	return n
}

// play names the servers that take the place of the script's one.
func (on *realStage) play(url string, servers map[string][]*redistest.Server) {
	for _, letter := range slices.Sorted(maps.Keys(servers)) {
		for i, s := range servers[letter] {
			on.Setenv(fmt.Sprint(letter, i), s.Addr)
		}
	}
	on.nodes = slices.Concat(servers["M"], servers["R"])
	on.all = slices.Concat(on.nodes, servers["S"])
	on.url = url
	on.Setenv("SERVER", on.nodes[0].Addr)
	on.Setenv("LOCKMIGRATE_REDIS", url)
}

// pool leads to the script's servers.
func (on *realStage) pool() lockmigrate.Pool {
	end, err := endpoint.Parse(on.url, endpoint.TLSFiles{})
	on.Check(err)
	pool, err := end.Locks()
	on.Check(err)
	on.t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// turns has clients of a server do something again and again, until rest or the script's end. It returns the first one's address.
func (on *realStage) turns(server string, clients int, work func([]redis.Conn)) (addr string) {
	var conns []redis.Conn
	for range clients {
		conn, err := redis.Dial("tcp", server)
		on.Check(err)
		conns = append(conns, conn)
	}
	addr = redistest.AddrOf(on.t, conns[0])
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	rest := func() { stop(); <-ended }
	on.rest = append(on.rest, rest)
	on.t.Cleanup(rest)
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			work(conns)
			time.Sleep(10 * time.Millisecond) // the pace of a client
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	return addr
}

// turn takes and releases a lock, as an old client does.
func turn(conn redis.Conn, key string) {
	_, _ = conn.Do("SETNX", key, inMS(30*time.Second))
	_, _ = conn.Do("DEL", key)
}

func inMS(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).UnixMilli()) }

// ownedBy returns a lock's key that a master of a new cluster serves.
func ownedBy(c *redistest.Cluster, master int) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("lock:%d", i)
		if protocol.Slot(key)*len(c.Masters)/redistest.Slots == master {
			return key
		}
	}
}

// running is a command line that runs beside the test.
type running struct {
	t           testing.TB
	out         buffer
	diagnostics buffer
	stop        context.CancelFunc
	code        chan int
}

func start(t testing.TB, getenv func(string) string, args ...string) *running {
	t.Helper()
	r := &running{t: t, code: make(chan int, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	t.Cleanup(cancel)
	env := surroundings(&r.out, &r.diagnostics, false)
	env.getenv = getenv
	go func() { r.code <- run(ctx, env, args) }()
	return r
}

// await waits until the command has printed something, on either stream.
func (r *running) await(pattern string) {
	r.t.Helper()
	printed := regexp.MustCompile(pattern)
	redistest.Await(r.t, pattern, func() bool {
		if len(r.code) > 0 {
			r.t.Fatalf("it ended before it printed %q\n%s\n%s", pattern, r.out.String(), r.diagnostics.String())
		}
		return printed.MatchString(r.out.String() + r.diagnostics.String())
	})
}

func (r *running) wait() int {
	r.t.Helper()
	select {
	case code := <-r.code:
		return code
	case <-time.After(2 * time.Minute):
		r.t.Fatalf("it does not end\n%s\n%s", r.out.String(), r.diagnostics.String())
		return -1
	}
}

// expect runs a command line, and wants an exit code.
func expect(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	return operator{t: t}.runs(code, args...)
}
