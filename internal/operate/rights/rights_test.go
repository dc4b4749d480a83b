package rights_test

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/rights"
)

// few is the pool of a user with few rights.
func few(s *redistest.Server) *redis.Pool {
	return &redis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", s.Addr, redis.DialUsername("few"), redis.DialPassword("pw"), redis.DialReadTimeout(2*time.Second))
	}}
}

// servers starts what a use needs: one server, three for a quorum, one with a replica.
func servers(t *testing.T, use string) []*redistest.Server {
	t.Helper()
	switch use {
	case "quorum":
		return []*redistest.Server{redistest.Real(t), redistest.Real(t), redistest.Real(t)}
	case "modern Replicas":
		master := redistest.Real(t)
		host, port, _ := net.SplitHostPort(master.Addr)
		redistest.Real(t, "--replicaof", host+" "+port)
		redistest.Await(t, "the replica", time.Minute, func() bool {
			info, _ := redis.String(master.Do("INFO", "replication"), nil)
			return strings.Contains(info, "state=online")
		})
		return []*redistest.Server{master}
	}
	return []*redistest.Server{redistest.Real(t)}
}

// try runs a scenario as a user with exactly these rights, but one. It returns the keys that are left and what
// the server refused.
func try(t *testing.T, all []*redistest.Server, use rights.Use, without *rights.Right) (left, refused []string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var pools []lockmigrate.Pool
	for _, s := range all {
		s.Do("FLUSHALL")
		s.Do("SCRIPT", "FLUSH")
		s.Do("ACL", "LOG", "RESET")
		args := []any{"SETUSER", "few", "reset", "on", ">pw"}
		for _, w := range use.Rules([]string{"lock:*"}, without) {
			args = append(args, w)
		}
		s.Do("ACL", args...)
		pool := few(s)
		defer pool.Close()
		pools = append(pools, pool)
	}
	s := all[0]
	err = scenarios[use.Name](&stand{ctx: ctx, pool: pools[0], pools: pools, admin: s.Do,
		queue: slices.ContainsFunc(use.Rights, func(r rights.Right) bool { return r.Name == ":queue" })})
	if s.Do("TYPE", key) == "string" && s.Value(key) == dead { // what the scenario put there itself
		s.Do("DEL", key)
	}
	for _, one := range all {
		keys, _ := redis.Strings(one.Do("KEYS", "*"), nil)
		left = append(left, keys...)
		entries, _ := redis.Values(one.Do("ACL", "LOG"), nil)
		for _, e := range entries {
			row, _ := redis.Values(e, nil)
			refused = append(refused, fmt.Sprintf("%s", row[5:8]))
		}
	}
	return left, refused, err
}

// taken is what makes a lock look taken, or keeps a place for one.
var taken = regexp.MustCompile(`^(lock:a|\{lock:a\}:(guard|queue|line))$`)

// names tells that an error names a right.
func names(err error, r rights.Right) bool {
	text := strings.ToLower(err.Error())
	switch r.Kind {
	case rights.Command:
		command, sub, _ := strings.Cut(r.Name, "|")
		return regexp.MustCompile(`\b`+regexp.QuoteMeta(command)+`\b`).MatchString(text) && strings.Contains(text, sub)
	case rights.Channel:
		return strings.Contains(text, strings.TrimSuffix(r.Name, "*"))
	}
	for _, p := range rights.Patterns(r.Name, key) {
		if strings.Contains(text, `"`+p+`"`) || strings.Contains(text, strings.TrimSuffix(strings.ReplaceAll(p, "*}:*", ""), ":*")) {
			return true
		}
	}
	return false
}

// ends tells that a key that is left ends by itself: by its TTL, or because legacy clients take its value over.
func ends(s *redistest.Server, key string) bool {
	if ttl, _ := s.Do("PTTL", key).(int64); ttl >= 0 || ttl == -2 {
		return true
	}
	if s.Do("TYPE", key) != "string" {
		return false
	}
	ms, err := strconv.ParseInt(s.Value(key), 10, 64)
	return err == nil && time.Until(time.UnixMilli(ms)) < 10*time.Second
}

// TestLeastRights runs each use of the lock packages as a user with exactly the rights that the table gives,
// and wants nothing refused; and with each single one taken away. Then it must say which one is missing, or
// go on where the table says what is lost; and leave no lock behind.
func TestLeastRights(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	for _, use := range rights.Packages {
		t.Run(use.Name, func(t *testing.T) {
			t.Parallel()
			all := servers(t, use.Name)
			left, refused, err := try(t, all, use, nil)
			require.NoError(t, err, "with all of them")
			require.Empty(t, refused, "with all of them")
			for _, key := range left {
				require.False(t, taken.MatchString(key), "left with all rights: %v", left)
			}
			for _, r := range use.Rights {
				left, refused, err := try(t, all, use, &r)
				left = slices.DeleteFunc(left, func(key string) bool { return !taken.MatchString(key) })
				if r.Frees || r.Without != "" {
					left = slices.DeleteFunc(left, func(key string) bool { return ends(all[0], key) })
				}
				t.Logf("%s without %s %s: %v, left %v, refused %v", use.Name, r.Kind, r.Name, err, left, refused)
				assert.Empty(t, left, "%s without %s %s leaves a key: %v", use.Name, r.Kind, r.Name, err)
				switch {
				case err != nil:
					assert.True(t, names(err, r), "%s without %s %s does not name it: %v", use.Name, r.Kind, r.Name, err)
				default:
					assert.NotEmpty(t, r.Without, "%s without %s %s works: the table has to say what is lost", use.Name, r.Kind, r.Name)
				}
			}
		})
	}
}
