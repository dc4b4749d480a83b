package doctor_test

import (
	"context"
	"flag"
	"fmt"
	"go/format"
	"net"
	"os"
	"path/filepath"
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
	"github.com/lockmigrate/lockmigrate/internal/operate/doctor"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	"github.com/lockmigrate/lockmigrate/pool/sentinel"
)

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
		redistest.Await(t, "the replica", func() bool {
			info, _ := redis.String(master.Do("INFO", "replication"), nil)
			return strings.Contains(info, "state=online")
		})
		return []*redistest.Server{master}
	}
	return []*redistest.Server{redistest.Real(t)}
}

// try runs a scenario as a user with exactly these rights, but one. It returns the keys that are left and what
// the server refused.
func try(t *testing.T, all []*redistest.Server, use doctor.Use, without *doctor.Right) (left, refused []string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var pools []lockmigrate.Pool
	for _, s := range all {
		s.Do("FLUSHALL")
		s.Do("SCRIPT", "FLUSH")
		s.Do("ACL", "LOG", "RESET")
		s.Grant("few", use.Rules([]string{"lock:*"}, without)...)
		pool := s.As("few")
		defer pool.Close()
		pools = append(pools, pool)
	}
	s := all[0]
	err = scenarios[use.Name].play(&stand{ctx: ctx, pool: pools[0], pools: pools, admin: s.Do,
		queue: slices.ContainsFunc(use.Rights, func(r doctor.Right) bool { return r.Name == ":queue" })})
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
func names(err error, r doctor.Right) bool {
	text := strings.ToLower(err.Error())
	switch r.Kind {
	case doctor.Command:
		command, sub, _ := strings.Cut(r.Name, "|")
		return regexp.MustCompile(`\b`+regexp.QuoteMeta(command)+`\b`).MatchString(text) && strings.Contains(text, sub)
	case doctor.Channel:
		return strings.Contains(text, strings.TrimSuffix(r.Name, "*"))
	}
	for _, p := range doctor.Patterns(r.Name, key) {
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
	for _, use := range doctor.Packages {
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

var update = flag.Bool("update", false, "write the documents instead of comparing them")

// TestDocuments compares what the documents say with the table.
func TestDocuments(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	for _, pkg := range []string{"legacy", "modern", "modern/redisson", "modern/quorum", "compat", "pool/cluster", "pool/sentinel"} {
		want, err := format.Source([]byte(doctor.PackageDoc(filepath.Base(pkg))))
		require.NoError(t, err)
		redistest.Document(t, filepath.Join(root, pkg, "rights.go"), string(want), *update)
	}
	redistest.Section(t, filepath.Join(root, "SECURITY.md"), "rights", "internal/operate/doctor/rights.txt",
		doctor.Markdown()+"\nWithout a right in brackets:\n\n"+doctor.Losses(), *update)
}

// TestSidecarsPage: the lines of docs/sidecar.md grant the service and its sidecar what the table says, which package sidecar's TestLeastRights runs.
func TestSidecarsPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "sidecar.md"))
	require.NoError(t, err)
	lines := regexp.MustCompile(`(?m)^    ACL SETUSER (billing|sidecar) .*$`).FindAllString(string(text), -1)
	require.Len(t, lines, 2)
	for i, use := range []doctor.Use{doctor.Sidecars[1], doctor.Sidecars[0]} {
		for _, r := range use.Rights {
			if r.Kind == doctor.Command && r.Name != "select" { // the lines are about database 0
				assert.Contains(t, strings.Fields(lines[i]), "+"+r.Name, use.Name)
			}
		}
	}
}

// TestEveryRoleHasAPattern wants the pattern of every role to match the key that the locks use.
func TestEveryRoleHasAPattern(t *testing.T) {
	for _, list := range [][]doctor.Use{doctor.Packages, doctor.Commands} {
		for _, u := range list {
			for _, r := range u.Rights {
				if r.Kind == doctor.Key {
					assert.NotEmpty(t, doctor.Patterns(r.Name, "lock:*"), r.Name)
				}
			}
		}
	}
	assert.Equal(t, []string{"{lock:*}:queue", "lock:*:queue:"}, doctor.Patterns(":queue", "lock:*"))
	assert.Equal(t, []string{"{7}lock:*:queue:"}, doctor.Patterns(":queue", "{7}lock:*"))
}

// grant makes a user with the rights of modern and of a topology, but one.
func grant(all []*redistest.Server, topology doctor.Use, without *doctor.Right) {
	base, _ := doctor.FindUse("modern")
	base.Rights = append(append([]doctor.Right{}, base.Rights...), topology.Rights...)
	for _, s := range all {
		s.Grant("few", base.Rules([]string{"lock:*"}, without)...)
		s.Do("ACL", "LOG", "RESET")
	}
}

func dialFew(ctx context.Context, addr string) (redis.Conn, error) {
	return redis.DialContext(ctx, "tcp", addr, redis.DialUsername("few"), redis.DialPassword("pw"), redis.DialReadTimeout(2*time.Second))
}

// TestLeastRightsOfTopologies locks over a cluster and behind sentinels with exactly the rights of the table,
// and with each single one of the topology taken away.
func TestLeastRightsOfTopologies(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	c, g := redistest.NewCluster(t, 3, 0), redistest.NewSentinels(t, 1, 1)
	for _, topology := range doctor.Topologies {
		all := c.Masters
		if topology.Name == "sentinel" {
			all = g.Servers
		}
		tries := []*doctor.Right{nil}
		for _, r := range topology.Rights {
			tries = append(tries, &r)
		}
		for _, without := range tries {
			grant(all, topology, without)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			pool, err := topologyPool(topology.Name, c, g)
			require.NoError(t, err)
			l, err := modern.New(pool, modern.Options{ReplyTimeout: time.Second})
			require.NoError(t, err)
			err = l.Do(ctx, "lock:a", func(context.Context) error { return nil })
			l.Close()
			_ = pool.Close()
			cancel()
			if without == nil {
				require.NoError(t, err, topology.Name)
				for _, s := range all {
					log, _ := s.Do("ACL", "LOG").([]any)
					assert.Empty(t, log, topology.Name)
				}
				continue
			}
			if without.Without != "" && err == nil {
				continue
			}
			require.Error(t, err, "%s without %s", topology.Name, without.Name)
			assert.True(t, names(err, *without), "%s without %s: %v", topology.Name, without.Name, err)
		}
	}
}

// closer is a pool of a topology.
type closer interface {
	GetContext(ctx context.Context) (redis.Conn, error)
	Close() error
}

func topologyPool(name string, c *redistest.Cluster, g *redistest.SentinelGroup) (closer, error) {
	if name == "cluster" {
		return cluster.New(cluster.Options{Addrs: c.Addrs(), Dial: dialFew, Patience: time.Second})
	}
	return sentinel.New(sentinel.Options{Addrs: g.Addrs(), Master: g.Name, Dial: dialFew, Patience: time.Second})
}
