package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
)

// running is a command line that runs beside the test.
type running struct {
	t           *testing.T
	out         buffer
	diagnostics buffer
	stop        context.CancelFunc
	code        chan int
}

func start(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{t: t, code: make(chan int, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	t.Cleanup(cancel)
	go func() { r.code <- run(ctx, surroundings(&r.out, &r.diagnostics, false), args) }()
	return r
}

// await waits until the command has printed something.
func (r *running) await(text string, meanwhile func()) {
	r.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(r.out.String(), text); {
		select {
		case code := <-r.code:
			r.t.Fatalf("it ended with %d before it printed %q\n%s\n%s", code, text, r.out.String(), r.diagnostics.String())
		case <-time.After(10 * time.Millisecond): // the pace of a client
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("it does not print %q\n%s\n%s", text, r.out.String(), r.diagnostics.String())
		}
		if meanwhile != nil {
			meanwhile()
		}
	}
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

// during works until the command ends, and returns its exit code.
func (r *running) during(work func()) int {
	r.t.Helper()
	deadline := time.After(5 * time.Minute)
	for {
		work()
		select {
		case code := <-r.code:
			return code
		case <-time.After(10 * time.Millisecond): // the pace of a client
		case <-deadline:
			r.t.Fatalf("it does not end\n%s\n%s", r.out.String(), r.diagnostics.String())
		}
	}
}

// ownedBy returns a lock's key that a master of a new cluster serves.
func ownedBy(c *redistest.Cluster, master int) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("lock:%d", i)
		if protocol.Slot(key)*len(c.Masters)/redistest.Slots == master {
			return key
		}
	}
}

func inMS(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).UnixMilli()) }

// expect runs a command line, and wants an exit code.
func expect(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	got, stdout, stderr := lockmigrateIn(t.Context(), false, args...)
	require.Equal(t, code, got, "%q\n%s\n%s", args, stdout, stderr)
	return stdout, stderr
}

func TestDoctorOverACluster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 3, 0)
	c.Masters[1].Do("SET", ownedBy(c, 1), inMS(-48*time.Hour))
	out, _ := expect(t, exitDone, "doctor", "--all", "--redis", c.URL())
	for _, s := range c.Masters {
		assert.Contains(t, out, "("+s.Addr+")")
	}
	assert.Regexp(t, `(?m)^pass +masters-clocks +the clocks of 3 masters`, out)
	assert.Regexp(t, `(?m)^warn +ghosts .*such as "lock:\d+" +\(`+c.Masters[1].Addr, out)
	assert.Regexp(t, `(?m)^pass +cluster-mode +a cluster, addressed as one`, out)
	out, _ = expect(t, exitDone, "doctor", "--redis", c.URL())
	assert.Equal(t, 1, strings.Count("\n"+out, "\npass "), "what passes is one line")
	assert.Regexp(t, `(?m)^warn +ghosts `, out)
	c.Masters[2].Do("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
	out, stderr := expect(t, exitUnsafe, "doctor", "--redis", c.URL())
	assert.Regexp(t, `(?m)^fail +eviction .*\(`+c.Masters[2].Addr, out)
	assert.Contains(t, stderr, "1 check fails")
	expect(t, exitUnsafe, "doctor", "--redis", c.Masters[0].URL()) // a node of a cluster, addressed alone
}

// TestDoctorWithoutAMaster: what was not looked at is not called fit, and a cluster that takes no lock is called unfit.
func TestDoctorWithoutAMaster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 3, 0)
	c.Masters[1].Kill()
	left := []*redistest.Server{c.Masters[0], c.Masters[2]}
	await := func(state string) {
		redistest.Await(t, "a cluster that is "+state, time.Minute, func() bool {
			return !slices.ContainsFunc(left, func(s *redistest.Server) bool {
				info, _ := redis.String(s.Try("CLUSTER", "INFO"))
				return !strings.Contains(info, "cluster_state:"+state)
			})
		})
	}
	await("fail")
	out, _ := expect(t, exitUnsafe, "doctor", "--redis", c.URL())
	assert.Regexp(t, `(?m)^fail +cluster-mode .*its state is fail`, out)

	for _, s := range left {
		s.Do("CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	await("ok")
	out, stderr := expect(t, exitInconclusive, "doctor", "--redis", c.URL())
	assert.Regexp(t, `(?m)^skip +reached +cannot connect to .*\(`+c.Masters[1].Addr, out)
	assert.Contains(t, out, "verdict: inconclusive; a yes needs: reached@"+c.Masters[1].Addr)
	assert.Contains(t, out, "("+c.Masters[2].Addr+")", "the others are looked at")
	assert.Contains(t, stderr, "not all that a yes needs could be made")
}

func TestVerifyOverACluster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 3, 1)
	name := "orders"
	for n := 0; protocol.Slot(name)*3/redistest.Slots == 0; n++ { // its record is not on the first node of the URL
		name = fmt.Sprint("orders-", n)
	}
	expect(t, exitDone, "stage", "init", "--namespace", name, "--match", "lock:*", "--dialect", "jedis-ms", "--shortest-lease", "2s", "--execute", "--redis", c.URL())
	expect(t, exitDone, "stage", "advance", "--namespace", name, "--to", "bridge", "--execute", "--redis", c.URL())
	pool, err := cluster.New(cluster.Options{Addrs: c.Addrs()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = pool.Close() })
	working(t, pool, name, ownedBy(c, 1))
	verify := []string{"verify", "--for", "2500ms", "--namespace", name, "--longest-silence", "2s", "--monitor", "--redis", c.URL()}
	// Another application locks as modern clients do, and asks the wrong master first.
	first := start(t, append(verify, "--json")...)
	wrong, right := c.Masters[0].Conn(), c.Masters[1].Conn()
	code := first.during(func() {
		_, err := wrong.Do("SET", ownedBy(c, 1), "token", "NX", "PX", 10)
		assert.ErrorContains(t, err, "MOVED")
		_, err = right.Do("SET", ownedBy(c, 1), "token", "NX", "PX", 10)
		assert.NoError(t, err)
	})
	require.Equal(t, exitDone, code, first.out.String()+first.diagnostics.String())
	assert.Contains(t, first.out.String(), "were sent to another node")

	out, _ := expect(t, exitDone, verify...)
	assert.Contains(t, out, "of       namespace "+name+", epoch 2")
	for _, s := range c.Masters {
		assert.Contains(t, out, "server   "+s.Addr)
	}

	// MONITOR names him too.
	r := start(t, "verify", "--for", "3s", "--match", "lock:*", "--monitor", "--json", "--redis", c.URL())
	old := c.Masters[2].Conn()
	from := addrOf(t, old)
	code = r.during(func() {
		_, _ = old.Do("SETNX", ownedBy(c, 2), inMS(time.Minute))
		_, _ = old.Do("DEL", ownedBy(c, 2))
	})
	require.Equal(t, exitUnsafe, code, r.diagnostics.String())
	var cert struct {
		Evidence struct {
			Masters []struct {
				Addr     string
				Commands []struct {
					Name string
					Run  int64
				}
			}
			Seen []struct{ Addr string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(r.out.String()), &cert))
	for _, m := range cert.Evidence.Masters {
		ran := false
		for _, command := range m.Commands {
			ran = ran || command.Name == "setnx" && command.Run > 0
		}
		assert.Equal(t, m.Addr == c.Masters[2].Addr, ran, m.Addr)
	}
	assert.True(t, slices.ContainsFunc(cert.Evidence.Seen, func(l struct{ Addr string }) bool { return l.Addr == from }), r.out.String())

	r = start(t, "verify", "--for", "12s", "--match", "lock:*", "--redis", c.URL())
	before := looksOf(t, c.Masters[1].URL())
	redistest.Await(t, "the look after the first", 20*time.Second, func() bool { return looksOf(t, c.Masters[1].URL()) > before+1 })
	c.Failover(c.Replicas[1][0])
	require.Equal(t, exitInconclusive, r.wait(), r.out.String())
	assert.Contains(t, r.out.String(), "verdict: INCONCLUSIVE")
	assert.Contains(t, r.out.String(), "the masters are not those of the start")
}

// fenced tells whether a server denies SETNX to a user.
func fenced(t *testing.T, s *redistest.Server) bool {
	t.Helper()
	reply, err := redis.String(s.Do("ACL", "DRYRUN", "old", "SETNX", "lock:x", "1"), nil)
	require.NoError(t, err)
	return reply != "OK"
}

func oldUser(servers []*redistest.Server) {
	for _, s := range servers {
		s.Do("ACL", "SETUSER", "old", "on", ">pw", "~*", "&*", "+@all")
	}
}

// fenceOver puts the fence up and takes it away, on masters and replicas.
func fenceOver(t *testing.T, url string, servers []*redistest.Server) {
	t.Helper()
	journal := filepath.Join(t.TempDir(), "fence.jsonl")
	out, _ := expect(t, exitDone, "fence", "--user", "old", "--lock", "lock:*", "--redis", url)
	for _, s := range servers {
		assert.Contains(t, out, "server "+s.Addr)
		assert.False(t, fenced(t, s), "a preview changes nothing")
	}
	assert.Contains(t, out, "(a replica), user old")
	expect(t, exitDone, "fence", "--user", "old", "--lock", "*", "--execute", "--journal", journal, "--redis", url)
	for _, s := range servers {
		assert.True(t, fenced(t, s), s.Addr)
	}
	expect(t, exitDone, "fence", "--remove", journal, "--execute", "--redis", url)
	for _, s := range servers {
		assert.False(t, fenced(t, s), s.Addr)
	}
}

func TestFenceOverACluster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 2, 1)
	oldUser(c.Nodes())
	fenceOver(t, c.URL(), c.Nodes())
	journal := filepath.Join(t.TempDir(), "fence.jsonl")

	// The fence holds after a failover.
	expect(t, exitDone, "fence", "--user", "old", "--lock", "*", "--execute", "--journal", journal, "--redis", c.URL())
	c.Failover(c.Replicas[0][0])
	c.AwaitOK()
	conn, err := redis.Dial("tcp", c.Replicas[0][0].Addr, redis.DialUsername("old"), redis.DialPassword("pw"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Do("SETNX", ownedBy(c, 0), "1")
	require.ErrorContains(t, err, "NOPERM", "the new master")

	// A replica without the user is told of; the others are done.
	c.Nodes()[3].Do("ACL", "DELUSER", "old")
	out, stderr := expect(t, exitFailed, "fence", "--remove", journal, "--execute", "--redis", c.URL())
	assert.Contains(t, out, "NOT DONE")
	assert.Contains(t, stderr, "1 of 4 servers could not be changed")
	for _, s := range c.Nodes()[:3] {
		assert.False(t, fenced(t, s))
	}
	// A master without it is an error before anything changes.
	c.Masters[1].Do("ACL", "DELUSER", "old")
	_, stderr = expect(t, exitUsage, "fence", "--user", "old", "--lock", "*", "--execute", "--redis", c.URL())
	assert.Contains(t, stderr, c.Masters[1].Addr+` has no user "old"`)
	assert.False(t, fenced(t, c.Masters[0]))
}

func TestFenceAndObserveOverSentinels(t *testing.T) {
	t.Parallel()
	g := redistest.NewSentinels(t, 1, 3)
	oldUser(g.Servers)
	fenceOver(t, g.URL(), g.Servers)

	// A failover within an observation: the new master is watched, and the hole is told.
	before := g.Master()
	r := start(t, "observe", "--for", "2m", "--follow", "--json", "--redis", g.URL())
	locks(before)
	r.await(`"what":"acquired"`, func() { locks(before) })
	after := g.Failover()
	r.await(`"key":"lock:after"`, func() {
		_, _ = after.Try("SETNX", "lock:after", inMS(time.Minute))
		_, _ = after.Try("DEL", "lock:after")
	})
	r.stop()
	assert.Equal(t, exitFailed, r.wait(), "interrupted")
	out, _ := expect(t, exitDone, "observe", "--for", "500ms", "--redis", g.URL())
	assert.Contains(t, out, "no client used a lock")
}

func TestDemoOverManyServers(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 3, 0)
	out, _ := expect(t, exitDone, "demo", "--act", "300ms", "--redis", c.URL())
	assert.True(t, strings.HasSuffix(out, "\noverlaps: 0\n"), out)
	for _, s := range c.Masters {
		assert.EqualValues(t, 0, s.Do("DBSIZE"), "it leaves nothing")
	}
	g := redistest.NewSentinels(t, 1, 1)
	out, _ = expect(t, exitDone, "demo", "--act", "300ms", "--json", "--redis", g.URL())
	assert.Contains(t, out, `"complete":true`)
	assert.EqualValues(t, 0, g.Master().Do("DBSIZE"))
}

// The stage of a namespace, and a census of all keys, over a cluster and over sentinels.
func TestStageAndScanOverManyServers(t *testing.T) {
	t.Parallel()
	over := func(t *testing.T, url string, set func(key, value string)) {
		for _, key := range []string{"lock:a", "lock:b", "lock:c", "lock:d", "lock:e", "lock:f"} {
			set(key, "9999999999999")
		}
		o := operator{t, url}
		o.bridges("orders", "lock:*")
		assert.Contains(t, o.says(exitDone, "stage", "--namespace", "orders", "--json"), `"bridge"`)
		out, _ := o.runs(exitDone, "scan", "--match", "lock:*", "--json")
		rows := strings.Split(strings.TrimSpace(out), "\n")
		var last struct {
			Summary struct{ Locks int }
		}
		require.NoError(t, json.Unmarshal([]byte(rows[len(rows)-1]), &last))
		assert.Equal(t, 6, last.Summary.Locks, "of every master")
	}
	t.Run("cluster", func(t *testing.T) {
		c := redistest.NewCluster(t, 3, 0)
		over(t, c.URL(), func(key, value string) {
			for _, s := range c.Masters {
				if _, err := s.Try("SET", key, value); err == nil {
					return
				}
			}
			t.Fatalf("nobody takes %s", key)
		})
		_, stderr := expect(t, exitDone, "scan", "--redis", c.Masters[0].URL())
		assert.Contains(t, stderr, "this server is one node of a cluster")
	})
	t.Run("sentinel", func(t *testing.T) {
		g := redistest.NewSentinels(t, 1, 1)
		over(t, g.URL(), func(key, value string) { g.Master().Do("SET", key, value) })
	})
}

// TestScanAcrossAFailover: the server that a scan has begun on becomes a replica. Its keys are no evidence from then on.
func TestScanAcrossAFailover(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 1, 1)
	c.Masters[0].Do("EVAL", "#!lua flags=allow-cross-slot-keys\nfor i = 1, 3000 do redis.call('SET', 'lock:' .. i, '1') end", 0)
	r := start(t, "scan", "--json", "--rate", "500", "--all", "--redis", c.URL())
	r.await("lock:", nil)
	c.Failover(c.Replicas[0][0])
	assert.Equal(t, exitFailed, r.wait())
	assert.Contains(t, r.out.String(), `"complete":false`)
	assert.Contains(t, r.diagnostics.String(), "the masters were "+c.Masters[0].Addr+", and now are "+c.Replicas[0][0].Addr)
}

// TestVerifyBesideSentinelsThatAreCutOff: two others may have replaced the master that the last one names.
func TestVerifyBesideSentinelsThatAreCutOff(t *testing.T) {
	t.Parallel()
	g := redistest.NewSentinels(t, 1, 3)
	live(g.Master(), "lock:live")
	verify := []string{"verify", "--for", "1s", "--longest-silence", "1s", "--match", "lock:*", "--monitor", "--redis", g.URL()}
	expect(t, exitDone, verify...)
	g.Sentinels[0].Kill()
	g.Sentinels[1].Kill()
	redistest.Await(t, "the third to miss them", 20*time.Second, func() bool {
		_, err := g.Sentinels[2].Try("SENTINEL", "CKQUORUM", g.Name)
		return err != nil
	})
	out, stderr := expect(t, exitInconclusive, verify...)
	assert.Contains(t, out, "NOQUORUM")
	assert.Contains(t, stderr, "not discharged: masters")
}
