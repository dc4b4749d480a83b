package doctor_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/doctor"
	"github.com/lockmigrate/lockmigrate/internal/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/redistest"
)

// examine returns the checks by id.
func examine(t *testing.T, url string, opts doctor.Options) map[string]doctor.Check {
	t.Helper()
	end, err := endpoint.Parse(url, endpoint.TLSFiles{})
	require.NoError(t, err)
	opts.Keys = 100_000
	checks, err := doctor.Examine(context.Background(), end, opts)
	require.NoError(t, err)
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
	for _, id := range []string{"version", "role", "eviction", "persistence", "scripting", "rights-commands", "rights-keys", "rights-channels", "tracking", "monitor", "acl-log", "clock", "dialects", "ghosts"} {
		assert.Equal(t, doctor.Pass, checks[id].Verdict, "%s: %s", id, checks[id].Found)
	}
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
		}, "rights-channels", doctor.Warn, "NUMSUB"},
		{"no right to the guard", func(t *testing.T) (string, doctor.Options) {
			s := redistest.Real(t)
			s.Do("ACL", "SETUSER", "joe", "on", ">pw", "~lock:*", "&*", "+@all")
			return "redis://joe:pw@" + s.Addr, doctor.Options{Match: "lock:*"}
		}, "rights-keys", doctor.Fail, "guard"},
		{"a command renamed away", func(t *testing.T) (string, doctor.Options) {
			return redistest.Real(t, "--rename-command", "GETSET", "").URL(), doctor.Options{}
		}, "commands", doctor.Fail, "GETSET"},
		{"a host whose clock is ahead", func(t *testing.T) (string, doctor.Options) {
			return redistest.Real(t).URL(), doctor.Options{Now: func() time.Time { return time.Now().Add(7 * time.Second) }}
		}, "clock", doctor.Fail, "7s ahead"},
		{"a replica", func(t *testing.T) (string, doctor.Options) {
			master := redistest.Real(t)
			host, port, _ := net.SplitHostPort(master.Addr)
			return redistest.Real(t, "--replicaof", host+" "+port).URL(), doctor.Options{}
		}, "role", doctor.Fail, "read-only replica"},
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
		{"closes idle connections", func(t *testing.T) (string, doctor.Options) {
			return redistest.Real(t, "--timeout", "60").URL(), doctor.Options{}
		}, "idle-timeout", doctor.Warn, "60"},
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
	assert.Equal(t, doctor.Skip, checks["rights-commands"].Verdict)
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
