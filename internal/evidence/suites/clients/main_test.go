// Package clients holds what is true of the locks of released packages, and that every tool says just that: what they
// write, what they make of a value that is not theirs, and whether Go can lock beside them. The suite makes docs/clients.md.
package clients

import (
	"flag"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

var update = flag.Bool("update", false, "write docs/clients.md as this run finds it")

func TestMain(m *testing.M) {
	holders.ServeIfAsked(map[string]holders.Maker{
		"compat": func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
			if name := args["namespace"]; name != "" {
				return holders.Of(compat.New(pool, compat.Options{Namespace: name, TTL: memberTTL, Lease: lease}))
			}
			return holders.Of(newCompat(pool, args["stage"], args["dialect"], memberTTL))
		},
		"modern": func(pool *redis.Pool, args map[string]string) (holders.Taker, error) {
			return holders.Of(modern.New(pool, modern.Options{TTL: memberTTL, FenceTTL: time.Minute}))
		},
	})
	_ = flag.Set("test.parallel", "4") // they wait as much as they work; the command line still decides
	redistest.Main(m, redistest.Redis, redistest.Java, redistest.Python, redistest.Node, redistest.PHP, redistest.GoHold)
}

const (
	lease     = 3 * time.Second // of the clients, where they have one
	goTTL     = time.Second     // of a Go holder that somebody waits for
	memberTTL = time.Second     // of a fleet's Go members
)

// newCompat makes a Locker as a service that joins the fleet would.
func newCompat(pool *redis.Pool, stage, dialect string, ttl time.Duration) (compat.Locker, error) {
	o := compat.Options{
		TTL: ttl, Lease: lease, ShortestLease: lease, ClockLag: 100 * time.Millisecond, CommandDelay: 300 * time.Millisecond,
	}
	var err error
	if stage == "modern" {
		if o.Namespace, err = redistest.InStage(pool, lockmigrate.StageModern, dialect, lease); err != nil {
			return nil, err
		}
	} else {
		o.Dialect.Name = dialect
	}
	return compat.New(pool, o)
}
