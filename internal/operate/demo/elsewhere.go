package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
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
	var halves stages.Halves
	if halves.Old.Mark, err = stages.WriteMark(ctx, s.opts.Pool, s.moved.Namespace, time.Second); err != nil {
		return err
	}
	if halves.New.Mark, err = stages.WriteMark(ctx, pool, s.moved.Namespace, time.Second); err != nil {
		return err
	}
	if err := s.moved.Init(ctx, stages.Record{Patterns: []string{s.prefix + "*"}, Handover: &halves}); err != nil {
		return err
	}
	s.say("a second server starts; the go services are deployed anew, one by one, with package handover: from the key here to a token there")
	retired := s.golang
	s.golang = nil
	for i, m := range retired {
		m.stop()
		select {
		case <-m.left:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := s.joinBoth(ctx, fmt.Sprintf("go-%d", len(retired)+i+1), pool); err != nil {
			return err
		}
	}
	return s.move(ctx, s.moved, stages.Both, "each go service holds the lock of both servers; java, which knows one, is still kept out")
}

// joinBoth starts a service with both locks.
func (s *stage) joinBoth(ctx context.Context, name string, pool *redis.Pool) error {
	old, err := compat.New(s.opts.Pool, compatOptions(s.store.Namespace, name))
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { _ = old.Close() })
	new, err := modern.New(pool, modern.Options{TTL: ttl})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { _ = new.Close() })
	locker, err := handover.New(pool, handover.Options{Namespace: s.moved.Namespace, Old: old, New: new, Member: name, Lease: lease})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() { _ = locker.Close() })
	s.golang = append(s.golang, s.fleet.join(name, "go", of(locker.Acquire)))
	return locker.Ready(ctx)
}

// leaveForGood retires what locks on the first server alone.
func (s *stage) leaveForGood(ctx context.Context) error {
	s.say("java and its sidecar are retired")
	if err := s.retireJava(ctx); err != nil {
		return err
	}
	return s.move(ctx, s.moved, stages.New, "the first server is not asked any more")
}
