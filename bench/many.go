package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
)

// hold keeps a lock for the time of the measurement.
func (w *worker) hold() (Result, error) {
	release, err := w.client.Acquire(context.Background(), w.spec.Key)
	if err != nil {
		return Result{}, err
	}
	w.referee.enter()
	if err := w.ready(); err != nil {
		return Result{}, err
	}
	time.Sleep(w.spec.For)
	w.referee.leave()
	return Result{}, release()
}

// wait waits for it in vain.
func (w *worker) wait() (Result, error) {
	if err := w.ready(); err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.spec.For)
	defer cancel()
	r := Result{}
	var mu sync.Mutex
	before := fromSystem()
	time.AfterFunc(w.spec.For*3/4, func() {
		mu.Lock()
		defer mu.Unlock()
		r.Memory = fromSystem() - before
	})
	var all sync.WaitGroup
	for range w.spec.Goroutines {
		all.Go(func() {
			if release, err := w.client.Acquire(ctx, w.spec.Key); err == nil {
				mu.Lock()
				r.Problem = "a waiter got a lock that was held"
				mu.Unlock()
				_ = release()
			}
		})
	}
	all.Wait()
	return r, nil
}

// each does something for every one of the locks that the process is to hold, 64 at a time.
func (w *worker) each(do func(i int, key string) error) error {
	failures := make([]error, 64)
	var all sync.WaitGroup
	for g := range failures {
		all.Go(func() {
			for i := g; i < w.spec.Held && failures[g] == nil; i += len(failures) {
				failures[g] = do(i, fmt.Sprintf("%s-%d", w.spec.Key, i))
			}
		})
	}
	all.Wait()
	return errors.Join(failures...)
}

// left takes many locks, gives them back, and looks later at what is left of them on the server.
func (w *worker) left() (Result, error) {
	if err := w.ready(); err != nil {
		return Result{}, err
	}
	err := w.each(func(_ int, key string) error { return w.client.Pair(context.Background(), key) })
	if err != nil {
		return Result{}, err
	}
	time.Sleep(w.spec.For)
	keys, err := redis.Strings(w.admin.Do("KEYS", "*"))
	r := Result{Ops: w.spec.Held}
	for _, key := range keys {
		n, err := redis.Int(w.admin.Do("MEMORY", "USAGE", key))
		if err != nil && err != redis.ErrNil { // it has run out
			return r, err
		}
		r.Memory += float64(n) / float64(r.Ops)
	}
	return r, err
}

// held takes many locks and keeps them.
func (w *worker) held() (Result, error) {
	releases := make([]func() error, w.spec.Held)
	err := w.each(func(i int, key string) (err error) {
		releases[i], err = w.client.Acquire(context.Background(), key)
		return err
	})
	if err != nil {
		return Result{}, err
	}
	if err := w.ready(); err != nil {
		return Result{}, err
	}
	m, err := w.begin()
	if err != nil {
		return Result{}, err
	}
	time.Sleep(w.spec.For)
	r, err := w.end(m, w.spec.Held)
	if err != nil {
		return r, err
	}
	if err := w.each(func(i int, _ string) error { return releases[i]() }); err != nil {
		r.Problem = "lost: " + err.Error()
	}
	return r, nil
}
