package doctor_test

import (
	"context"
	"fmt"
	"slices"
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
	checks := found
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

func TestMisconfiguredServers(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	ms := func(d time.Duration) any { return time.Now().Add(d).UnixMilli() }
	seconds := time.Now().Unix() + 60
	type command = []any
	for _, c := range []struct {
		name   string
		server string  // its arguments
		joe    string  // the rights of a user, whom doctor connects as
		do     command // beforehand
		match  string
		id     string
		want   doctor.Verdict
		says   string
	}{
		{"evicts any key", "--maxmemory 50mb --maxmemory-policy allkeys-lru", "", nil, "", "eviction", doctor.Fail, "allkeys-lru"},
		{"evicts keys with a TTL", "--maxmemory 50mb --maxmemory-policy volatile-ttl", "", nil, "", "eviction", doctor.Fail, "volatile-ttl"},
		{"no right to scripts", "", "~* &* +@all -eval -evalsha", nil, "", "scripting", doctor.Fail, "NOPERM"},
		{"no right to count listeners", "", "~* &* +@all -pubsub", nil, "", "rights-modern", doctor.Warn, "pubsub|numsub"},
		{"no right to the guard", "", "~lock:* &* +@all", nil, "lock:*", "rights-compat-Namespace-bridge", doctor.Fail, "{lock:lockmigrate-doctor}:guard"},
		{"no right to the queue", "", "~lock:* &* +@all", nil, "lock:*", "rights-modern", doctor.Fail, "{lock:lockmigrate-doctor}:queue"},
		{"EVALSHA renamed away", "--rename-command EVALSHA ''", "", nil, "", "scripting", doctor.Fail, "EVALSHA"},
		{"a command renamed away", "--rename-command GETSET ''", "", nil, "", "commands", doctor.Fail, "GETSET"},
		{"fewer replicas than writes need", "--min-replicas-to-write 1", "", nil, "", "replication", doctor.Fail, "NOREPLICAS"},
		{"a node of a cluster", "--cluster-enabled yes", "", nil, "", "cluster-mode", doctor.Fail, "cluster"},
		{"a replica", "--replicaof 127.0.0.1 1", "", nil, "", "role", doctor.Fail, "read-only replica"},
		{"a bridge value without its TTL", "", "", command{"SET", "lock:order:1", "7000000000000000001"}, "", "tokens-without-ttl", doctor.Warn, "lock:order:1"},
		{"a bridge value is not over", "", "", command{"SET", "lock:order:1", "7000000000000000001"}, "", "ghosts", doctor.Pass, "none"},
		{"two dialects on one key", "", "", command{"MSET", "lock:order:1", ms(time.Minute), "lock:order:2", seconds}, "", "dialects", doctor.Fail, "redis-doc"},
		{"clients that overwrite a holder", "", "", command{"SETEX", "qo_tasks.add_a-1", 60, seconds}, "", "dialects", doctor.Fail, "blind-set"},
		{"either of two dialects", "", "", command{"SET", "lock:py", fmt.Sprint(seconds, ".25")}, "", "dialects", doctor.Pass, "redispy-float or redis-objects"},
		{"a token of 16 letters and digits", "", "", command{"SETNX", "lock:laravel", "q8ZK3mPx0aVbT7Ld"}, "", "tokens-without-ttl", doctor.Warn, "lock:laravel"},
		{"a token on a key of another name", "", "", command{"SETNX", "laravel_cache:job", "q8ZK3mPx0aVbT7Ld"}, "", "tokens-without-ttl", doctor.Warn, "1 random texts"},
		{"ghosts", "", "", command{"SET", "lock:dead", ms(-48 * time.Hour)}, "", "ghosts", doctor.Warn, "lock:dead"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var args []string
			for word := range strings.FieldsSeq(c.server) {
				args = append(args, strings.Trim(word, "'"))
			}
			s := redistest.Real(t, args...)
			url := s.URL()
			if c.do != nil {
				s.Do(c.do[0].(string), c.do[1:]...)
			}
			if c.joe != "" {
				userOf(s, "joe", strings.Fields(c.joe))
				url = "redis://joe:pw@" + s.Addr
			}
			check := examine(t, url, doctor.Options{Match: c.match})[c.id]
			assert.Equal(t, c.want, check.Verdict)
			assert.Contains(t, check.Found, c.says)
		})
	}
	s := redistest.Real(t)
	userOf(s, "joe", []string{"~lock:*", "~{lock:*}:queue", "&*", "+@all"})
	check := examine(t, s.URL(), doctor.Options{Match: "lock:*", User: "joe", Uses: []string{"modern FenceTTL"}})["rights-modern-FenceTTL"]
	assert.Equal(t, doctor.Fail, check.Verdict, "of another user")
	assert.Contains(t, check.Found, "{lock:lockmigrate-doctor}:fence")
}

func userOf(s *redistest.Server, name string, rules []string) {
	args := []any{"SETUSER", name, "reset", "on", ">pw"}
	for _, w := range rules {
		args = append(args, w)
	}
	s.Do("ACL", args...)
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
		look := func(without *rights.Right, more ...string) doctor.Check {
			userOf(s, "joe", slices.Concat(use.Rules([]string{"lock:*"}, without), []string{"+info", "+scan", "+time"}, more))
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
	outcome, list := doctor.Judge(found)
	assert.Equal(t, doctor.Inconclusive, outcome)
	assert.False(t, obligation.All(list))
	end, err = endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	found, err = doctor.Examine(context.Background(), end, doctor.Options{})
	require.NoError(t, err)
	outcome, list = doctor.Judge(found)
	assert.Equal(t, doctor.Fit, outcome, list)
	outcome, _ = doctor.Judge(nil)
	assert.Equal(t, doctor.Inconclusive, outcome)
}
