package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/modern"
)

// joinElsewhere has the Go services deployed anew, one by one, with package handover: from the lock that they have to a token on another server.
func (s *stage) joinElsewhere(ctx context.Context) error {
	other, err := StartServer()
	if err != nil {
		return err
	}
	pool := &redis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", other.Addr())
	}}
	s.last = append(s.last, func() { _ = pool.Close(); other.Close() })
	s.elsewhere = "redis://" + other.Addr() + "/0"
	s.moved = &stages.Store{Pool: pool, Namespace: s.store.Namespace + "-to-b", ReplyTimeout: time.Second}
	halves, err := stages.Marked(ctx, s.moved.Namespace, time.Second, s.opts.Pool, pool)
	if err != nil {
		return err
	}
	if err := s.moved.Init(ctx, stages.Record{Patterns: []string{s.prefix + "*"}, Handover: &halves}); err != nil {
		return err
	}
	s.say("a second server starts; the go services are deployed anew, one by one, with package handover: from the key here to a token there")
	retired := s.golang
	s.golang = nil
	for i, w := range retired {
		if err := retire(ctx, []*fleet.Worker{w}); err != nil {
			return err
		}
		name := fmt.Sprintf("go-%d", len(retired)+i+1)
		take, closes, err := fleet.Both(ctx, s.opts.Pool, pool, compatOptions(s.store.Namespace, name), modern.Options{TTL: ttl},
			handover.Options{Namespace: s.moved.Namespace, Member: name, Lease: lease})
		if err != nil {
			return err
		}
		s.closers = append(s.closers, closes)
		s.golang = append(s.golang, s.join(name, take))
	}
	return s.move(ctx, s.moved, stages.Both, "each go service holds the lock of both servers; java, which knows one, is still kept out")
}

// leaveForGood retires what locks on the first server alone.
func (s *stage) leaveForGood(ctx context.Context) error {
	s.say("java and its sidecar are retired")
	if err := s.retireJava(ctx); err != nil {
		return err
	}
	return s.move(ctx, s.moved, stages.New, "the first server is not asked any more")
}
