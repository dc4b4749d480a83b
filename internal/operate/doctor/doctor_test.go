package doctor_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/doctor"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/obligation"
	"github.com/lockmigrate/lockmigrate/internal/operate/rights"
)

// examine returns the checks by id.
func examine(t *testing.T, url string, opts doctor.Options) map[string]doctor.Check {
	t.Helper()
	end, err := endpoint.Parse(url, endpoint.TLSFiles{})
	require.NoError(t, err)
	found, err := doctor.Examine(context.Background(), end, opts)
	require.NoError(t, err)
	checks := found.Checks
	require.GreaterOrEqual(t, len(checks), 20)
	byID := map[string]doctor.Check{}
	for _, c := range checks {
		assert.NotEmpty(t, c.Found, c.ID)
		assert.NotEmpty(t, c.Why, c.ID)
		if c.Verdict == doctor.Warn || c.Verdict == doctor.Fail {
			assert.NotEmpty(t, c.Hint, c.ID)
		}
		byID[c.ID] = c
	}
	assert.Len(t, byID, len(checks), "ids are unique")
	return byID
}

func verdicts(checks map[string]doctor.Check, v doctor.Verdict) []string {
	var ids []string
	for id, c := range checks {
		if c.Verdict == v {
			ids = append(ids, id+": "+c.Found)
		}
	}
	return ids
}

func TestHealthyServer(t *testing.T) {
	s := redistest.Real(t, "--appendonly", "yes", "--appendfsync", "always")
	checks := examine(t, s.URL(), doctor.Options{})
	assert.Empty(t, verdicts(checks, doctor.Fail))
	for _, id := range []string{"version", "role", "eviction", "persistence", "scripting", "rights-legacy", "rights-compat-Namespace-legacy", "rights-compat-Namespace-bridge", "rights-compat-Namespace-modern", "rights-modern", "tracking", "monitor", "acl-log", "clock", "dialects", "ghosts"} {
		assert.Equal(t, doctor.Pass, checks[id].Verdict, "%s: %s", id, checks[id].Found)
	}
}

// What doctor says of a clock is true within the error that it gives, however busy the machine.
func TestAHostWhoseClockIsAhead(t *testing.T) {
	const ahead = 7 * time.Second
	s := redistest.Real(t)
	check := examine(t, s.URL(), doctor.Options{Now: func() time.Time { return time.Now().Add(ahead) }})["clock"]
	assert.Equal(t, doctor.Fail, check.Verdict)
	said := regexp.MustCompile(`^this host is (\S+) ahead of the server, give or take (\S+)$`).FindStringSubmatch(check.Found)
	require.NotNil(t, said, check.Found)
	off, err := time.ParseDuration(said[1])
	require.NoError(t, err)
	within, err := time.ParseDuration(said[2])
	require.NoError(t, err)
	const rounding = 10 * time.Microsecond // of both
	assert.InDelta(t, ahead, off, float64(within+rounding), check.Found)
}

func TestMisconfiguredServers(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	ms := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).UnixMilli()) }
	for _, c := range []struct {
		name string
		make func(t *testing.T) (url string, opts doctor.Options)
		id   string
		want doctor.Verdict
		says string
	}{
		{"evicts any key", func(t *testing.T) (string, doctor.Options) {
			return redistest.Real(t, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru").URL(), doctor.Options{}
		}, "eviction", doctor.Fail, "allkeys-lru"},
		{"evicts keys with a TTL", func(t *testing.T) (string, doctor.Options) {
			return redistest.Real(t, "--maxmemory", "50mb", "--maxmemory-policy", "volatile-ttl").URL(), doctor.Options{}
		}, "eviction", doctor.Fail, "volatile-ttl"},
		{"no right to scripts", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("ACL", "SETUSER", "joe", "on", ">pw", "~*", "&*", "+@all", "-eval", "-evalsha")
			return "redis://joe:pw@" + s.Addr, doctor.Options{}
		}, "scripting", doctor.Fail, "NOPERM"},
		{"no right to count listeners", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("ACL", "SETUSER", "joe", "on", ">pw", "~*", "&*", "+@all", "-pubsub")
			return "redis://joe:pw@" + s.Addr, doctor.Options{}
		}, "rights-modern", doctor.Warn, "pubsub|numsub"},
		{"no right to the guard", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("ACL", "SETUSER", "joe", "on", ">pw", "~lock:*", "&*", "+@all")
			return "redis://joe:pw@" + s.Addr, doctor.Options{Match: "lock:*"}
		}, "rights-compat-Namespace-bridge", doctor.Fail, "{lock:lockmigrate-doctor}:guard"},
		{"no right to the queue", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("ACL", "SETUSER", "joe", "on", ">pw", "~lock:*", "&*", "+@all")
			return "redis://joe:pw@" + s.Addr, doctor.Options{Match: "lock:*"}
		}, "rights-modern", doctor.Fail, "{lock:lockmigrate-doctor}:queue"},
		{"no right to the counter, of another user", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("ACL", "SETUSER", "joe", "on", ">pw", "~lock:*", "~{lock:*}:queue", "&*", "+@all")
			return s.URL(), doctor.Options{Match: "lock:*", User: "joe", Uses: []string{"modern FenceTTL"}}
		}, "rights-modern-FenceTTL", doctor.Fail, "{lock:lockmigrate-doctor}:fence"},
		{"EVALSHA renamed away", func(t *testing.T) (string, doctor.Options) {
			return redistest.Real(t, "--rename-command", "EVALSHA", "").URL(), doctor.Options{}
		}, "scripting", doctor.Fail, "EVALSHA"},
		{"a command renamed away", func(t *testing.T) (string, doctor.Options) {
			return redistest.Real(t, "--rename-command", "GETSET", "").URL(), doctor.Options{}
		}, "commands", doctor.Fail, "GETSET"},
		{"a replica", func(t *testing.T) (string, doctor.Options) {
			master := redistest.Real(t)
			host, port, _ := net.SplitHostPort(master.Addr)
			return redistest.Real(t, "--replicaof", host+" "+port).URL(), doctor.Options{}
		}, "role", doctor.Fail, "read-only replica"},
		{"fewer replicas than writes need", func(t *testing.T) (string, doctor.Options) {
			return redistest.Real(t, "--min-replicas-to-write", "1").URL(), doctor.Options{}
		}, "replication", doctor.Fail, "NOREPLICAS"},
		{"a bridge value without its TTL", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("SET", "lock:order:1", "7000000000000000001")
			return s.URL(), doctor.Options{}
		}, "tokens-without-ttl", doctor.Warn, "lock:order:1"},
		{"a bridge value is not over", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("SET", "lock:order:1", "7000000000000000001")
			return s.URL(), doctor.Options{}
		}, "ghosts", doctor.Pass, "none"},
		{"two dialects on one key", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("SET", "lock:order:1", ms(time.Minute))
			s.Do("SET", "lock:order:2", fmt.Sprint(time.Now().Unix()+60))
			return s.URL(), doctor.Options{}
		}, "dialects", doctor.Fail, "redis-doc"},
		{"clients that overwrite a holder", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("SETEX", "qo_tasks.add_a-1", 60, time.Now().Unix()+60)
			return s.URL(), doctor.Options{}
		}, "dialects", doctor.Fail, "blind-set"},
		{"either of two dialects", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("SET", "lock:py", fmt.Sprint(time.Now().Unix()+60)+".25")
			return s.URL(), doctor.Options{}
		}, "dialects", doctor.Pass, "redispy-float or redis-objects"},
		{"a token of 16 letters and digits", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("SETNX", "lock:laravel", "q8ZK3mPx0aVbT7Ld")
			return s.URL(), doctor.Options{}
		}, "tokens-without-ttl", doctor.Warn, "lock:laravel"},
		{"a token on a key of another name", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("SETNX", "laravel_cache:job", "q8ZK3mPx0aVbT7Ld")
			return s.URL(), doctor.Options{}
		}, "tokens-without-ttl", doctor.Warn, "1 random texts"},
		{"ghosts", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("SET", "lock:dead", ms(-48*time.Hour))
			return s.URL(), doctor.Options{}
		}, "ghosts", doctor.Warn, "lock:dead"},
		{"a node of a cluster", func(t *testing.T) (string, doctor.Options) {
			return redistest.Real(t, "--cluster-enabled", "yes").URL(), doctor.Options{}
		}, "cluster-mode", doctor.Fail, "cluster"},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, opts := c.make(t)
			checks := examine(t, url, opts)
			assert.Equal(t, c.want, checks[c.id].Verdict)
			assert.Contains(t, checks[c.id].Found, c.says)
		})
	}
}

// TestEachRightIsTried takes one right after the other from a user, for every use of the lock packages, and
// wants doctor to name it by ACL DRYRUN, and to skip it where the user has no right to that. It must change nothing.
func TestEachRightIsTried(t *testing.T) {
	s := redistest.Real(t)
	s.Do("SET", "lock:other", "x")
	for _, name := range []string{"legacy", "legacy ServiceStack", "modern", "modern Yield", "redisson", "quorum", "compat Namespace bridge"} {
		use, ok := rights.Find(name)
		require.True(t, ok)
		id := "rights-" + strings.ReplaceAll(name, " ", "-")
		look := func(without *rights.Right, more ...any) doctor.Check {
			args := []any{"SETUSER", "joe", "reset", "on", ">pw"}
			for _, w := range use.Rules([]string{"lock:*"}, without) {
				args = append(args, w)
			}
			s.Do("ACL", append(append(args, "+info", "+scan", "+time"), more...)...)
			return examine(t, "redis://joe:pw@"+s.Addr, doctor.Options{Match: "lock:*", Uses: []string{name}})[id]
		}
		whole := look(nil, "+acl|dryrun", "+acl|whoami")
		assert.Equal(t, doctor.Pass, whole.Verdict, "%s: %s", name, whole.Found)
		assert.Equal(t, doctor.Skip, look(nil).Verdict, "%s, without DRYRUN", name)
		for _, r := range use.Rights {
			if r.Name == "time" || r.Name == "scan" || r.Name == "info" || r.Name == "acl|whoami" {
				continue // doctor needs them itself
			}
			c := look(&r, "+acl|dryrun", "+acl|whoami")
			want := doctor.Fail
			if r.Without != "" {
				want = doctor.Warn
			}
			assert.Equal(t, want, c.Verdict, "%s without %s %s: %s", name, r.Kind, r.Name, c.Found)
			named := r.Name
			if r.Kind == rights.Key {
				named = rights.Patterns(r.Name, "lock:lockmigrate-doctor")[0]
			}
			if r.Name == rights.Namespace {
				named = "lockmigrate:{lockmigrate-doctor}"
			}
			assert.Contains(t, c.Found, named, "%s without %s %s", name, r.Kind, r.Name)
		}
	}
	assert.EqualValues(t, 1, s.Do("DBSIZE"))
	assert.Equal(t, "x", s.Value("lock:other"))
}

// TestRightsBeforeDryrun: what cannot be tried is skipped, unless the user's rule leaves nothing out, or the server has no rules.
func TestRightsBeforeDryrun(t *testing.T) {
	for name, acl := range map[string]bool{"redis-6.2.11": true, "redis-5.0.6": false} {
		s := redistest.Of(t, name)
		assert.Equal(t, doctor.Pass, examine(t, s.URL(), doctor.Options{})["rights-modern"].Verdict, name)
		if acl {
			s.Do("ACL", "SETUSER", "joe", "on", ">pw", "~*", "&*", "+@all", "-flushall")
			assert.Equal(t, doctor.Skip, examine(t, "redis://joe:pw@"+s.Addr, doctor.Options{})["rights-modern"].Verdict, name)
		}
	}
}

// TestFitNeedsAnswers gives a user too few rights to look with, and wants no yes.
func TestFitNeedsAnswers(t *testing.T) {
	s := redistest.Real(t)
	s.Do("ACL", "SETUSER", "joe", "on", ">pw", "~*", "&*", "+@all", "-@admin", "-@dangerous", "-multi")
	end, err := endpoint.Parse("redis://joe:pw@"+s.Addr, endpoint.TLSFiles{})
	require.NoError(t, err)
	found, err := doctor.Examine(context.Background(), end, doctor.Options{})
	require.NoError(t, err)
	outcome, list := doctor.Judge(found.Checks)
	assert.Equal(t, doctor.Inconclusive, outcome)
	assert.False(t, obligation.All(list))
	end, err = endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	found, err = doctor.Examine(context.Background(), end, doctor.Options{})
	require.NoError(t, err)
	outcome, list = doctor.Judge(found.Checks)
	assert.Equal(t, doctor.Fit, outcome, list)
	outcome, _ = doctor.Judge(nil)
	assert.Equal(t, doctor.Inconclusive, outcome)
}

// TestOldServer puts a stub in place of a server of long ago, which knows INFO and little else.
func TestOldServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerAsOld(conn)
		}
	}()
	checks := examine(t, "redis://"+listener.Addr().String(), doctor.Options{})
	assert.Equal(t, doctor.Fail, checks["version"].Verdict)
	assert.Contains(t, checks["version"].Found, "2.6.9")
	assert.Equal(t, doctor.Fail, checks["rights-legacy"].Verdict, "it knows none of the commands")
	assert.Equal(t, doctor.Fail, checks["scripting"].Verdict)
}

func answerAsOld(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		head, err := in.ReadString('\n')
		if err != nil {
			return
		}
		var n int
		_, _ = fmt.Sscanf(head, "*%d", &n)
		var words []string
		for range n {
			_, _ = in.ReadString('\n')
			word, _ := in.ReadString('\n')
			words = append(words, strings.ToUpper(strings.TrimSpace(word)))
		}
		reply := "-ERR unknown command\r\n"
		if len(words) > 0 && words[0] == "PING" {
			reply = "+PONG\r\n"
		}
		if len(words) > 0 && words[0] == "INFO" {
			info := "redis_version:2.6.9\r\nrole:master\r\n"
			reply = fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
		}
		if _, err := conn.Write([]byte(reply)); err != nil {
			return
		}
	}
}
