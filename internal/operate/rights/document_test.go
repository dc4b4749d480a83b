package rights_test

import (
	"context"
	"flag"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/rights"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	"github.com/lockmigrate/lockmigrate/pool/sentinel"
)

var update = flag.Bool("update", false, "write the documents instead of comparing them")

// TestDocuments compares what the documents say with the table.
func TestDocuments(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	for _, pkg := range []string{"legacy", "modern", "modern/redisson", "modern/quorum", "compat", "pool/cluster", "pool/sentinel"} {
		want, err := format.Source([]byte(rights.PackageDoc(filepath.Base(pkg))))
		require.NoError(t, err)
		redistest.Document(t, filepath.Join(root, pkg, "rights.go"), string(want), *update)
	}
	redistest.Section(t, filepath.Join(root, "SECURITY.md"), "rights", "internal/operate/rights",
		rights.Markdown()+"\nWithout a right in brackets:\n\n"+rights.Losses(), *update)
}

// TestSidecarsPage: the lines of docs/sidecar.md grant the service and its sidecar what the table says, which package sidecar's TestLeastRights runs.
func TestSidecarsPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "sidecar.md"))
	require.NoError(t, err)
	lines := regexp.MustCompile(`(?m)^    ACL SETUSER (billing|sidecar) .*$`).FindAllString(string(text), -1)
	require.Len(t, lines, 2)
	for i, use := range []rights.Use{rights.Sidecars[1], rights.Sidecars[0]} {
		for _, r := range use.Rights {
			if r.Kind == rights.Command && r.Name != "select" { // the lines are about database 0
				assert.Contains(t, strings.Fields(lines[i]), "+"+r.Name, use.Name)
			}
		}
	}
}

// TestEveryRoleHasAPattern wants the pattern of every role to match the key that the locks use.
func TestEveryRoleHasAPattern(t *testing.T) {
	for _, list := range [][]rights.Use{rights.Packages, rights.Commands} {
		for _, u := range list {
			for _, r := range u.Rights {
				if r.Kind == rights.Key {
					assert.NotEmpty(t, rights.Patterns(r.Name, "lock:*"), r.Name)
				}
			}
		}
	}
	assert.Equal(t, []string{"{lock:*}:queue", "lock:*:queue:"}, rights.Patterns(rights.Queue, "lock:*"))
	assert.Equal(t, []string{"{7}lock:*:queue:"}, rights.Patterns(rights.Queue, "{7}lock:*"))
}

// grant makes a user with the rights of modern and of a topology, but one.
func grant(all []*redistest.Server, topology rights.Use, without *rights.Right) {
	base, _ := rights.Find("modern")
	base.Rights = append(append([]rights.Right{}, base.Rights...), topology.Rights...)
	args := []any{"SETUSER", "few", "reset", "on", ">pw"}
	for _, w := range base.Rules([]string{"lock:*"}, without) {
		args = append(args, w)
	}
	for _, s := range all {
		s.Do("ACL", args...)
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
	for _, topology := range rights.Topologies {
		all := c.Masters
		if topology.Name == "sentinel" {
			all = g.Servers
		}
		tries := []*rights.Right{nil}
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
