// Command holder runs locks of released Go modules, unmodified, as holders that the Go test suites drive. ../README.md
// describes the kinds and the line protocol.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/RichardKnop/machinery/v1/config"
	machinery "github.com/RichardKnop/machinery/v1/locks/redis"
	redigo "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
)

func main() {
	holders.Serve(map[string]holders.Maker{"machinery": newMachinery, "go-redis-setnx": newSetNX})
}

// trial is one attempt; it returns holders.ErrBusy when another holds the lock.
type trial func(ctx context.Context, key string) (holders.Held, error)

// waiting makes a Taker of one attempt: it tries again after each poll until the wait is over.
type waiting struct {
	try        trial
	wait, poll time.Duration
}

func (w waiting) TryAcquire(ctx context.Context, key string) (holders.Held, error) {
	return w.try(ctx, key)
}

func (w waiting) Acquire(ctx context.Context, key string) (holders.Held, error) {
	end := time.Now().Add(w.wait)
	for {
		held, err := w.try(ctx, key)
		if !errors.Is(err, holders.ErrBusy) || !time.Now().Before(end) {
			return held, err
		}
		time.Sleep(w.poll)
	}
}

func newWaiting(args map[string]string, try trial) waiting {
	return waiting{try, holders.Millis(args, "wait", 10*time.Second), max(time.Millisecond, holders.Millis(args, "poll", 100*time.Millisecond))}
}

// newMachinery is kind `machinery`: the Lock of machinery 1.10.8. Its caller says until when, in ns, and nothing ever
// releases it.
func newMachinery(_ *redigo.Pool, args map[string]string) (holders.Taker, error) {
	at, err := url.Parse(args["url"])
	if err != nil {
		return nil, err
	}
	db, _ := strconv.Atoi(at.Path[min(1, len(at.Path)):])
	host := at.Host
	if password, set := at.User.Password(); set {
		host = password + "@" + host
	}
	lock := machinery.New(&config.Config{}, []string{host}, db, 1)
	lease := holders.Millis(args, "lease", time.Minute)
	return newWaiting(args, func(_ context.Context, key string) (holders.Held, error) {
		err := lock.Lock(key, time.Now().Add(lease).UnixNano())
		if errors.Is(err, machinery.ErrRedisLockFailed) || errors.Is(err, redis.Nil) {
			return holders.Held{}, fmt.Errorf("%w: %w", holders.ErrBusy, err) // redis.Nil: the key went between SET NX and GET
		}
		return holders.Held{Release: func(context.Context) error { return nil }}, err
	}), nil
}

// setNX is kind `go-redis-setnx`: article 000's lock as a Go service writes it on go-redis 9.23.0, whose SetNX without
// an expiration is the command SET NX.
type setNX struct {
	waiting
	client redis.UniversalClient
	lease  time.Duration
	offset atomic.Int64
}

func newSetNX(_ *redigo.Pool, args map[string]string) (holders.Taker, error) {
	o, err := redis.ParseURL(args["url"])
	if err != nil {
		return nil, err
	}
	s := &setNX{client: redis.NewClient(o), lease: holders.Millis(args, "lease", time.Minute)}
	s.Clock(holders.Millis(args, "clock", 0))
	s.waiting = newWaiting(args, s.try)
	return s, s.client.Ping(context.Background()).Err()
}

func (s *setNX) Clock(offset time.Duration) { s.offset.Store(int64(offset)) }

func (s *setNX) now() int64 { return time.Now().Add(time.Duration(s.offset.Load())).UnixMilli() }

func (s *setNX) try(ctx context.Context, key string) (holders.Held, error) {
	held := holders.Held{Release: func(ctx context.Context) error { return s.client.Del(ctx, key).Err() }}
	expires := s.now() + s.lease.Milliseconds() + 1
	won, err := s.client.SetNX(ctx, key, expires, 0).Result()
	if won || err != nil {
		return held, err
	}
	current, err := s.client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return holders.Held{}, holders.ErrBusy
	}
	if err != nil {
		return holders.Held{}, err
	}
	until, err := strconv.ParseInt(current, 10, 64)
	if err != nil {
		return holders.Held{}, err
	}
	if until >= s.now() {
		return holders.Held{}, holders.ErrBusy
	}
	old, err := s.client.GetSet(ctx, key, expires).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return holders.Held{}, err
	}
	if old != current {
		return holders.Held{}, holders.ErrBusy
	}
	return held, nil
}
