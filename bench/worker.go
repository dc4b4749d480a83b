package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
)

// work is a worker process: it reads what to do, says that it is ready, waits for the word, does it and
// says what it found.
func work(in *bufio.Reader, out io.Writer) error {
	order, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	w := &worker{}
	if err := json.Unmarshal(order, &w.spec); err != nil {
		return err
	}
	c, ok := contestantNamed(w.spec.Contestant)
	if !ok {
		return fmt.Errorf("no contestant %q", w.spec.Contestant)
	}
	if w.client, err = c.open(w.spec.Addr); err != nil {
		return err
	}
	defer w.client.Close()
	if w.admin, err = redis.Dial("tcp", w.spec.Addr); err != nil {
		return err
	}
	defer w.admin.Close()
	if w.referee, err = openReferee(w.spec.Shared); err != nil {
		return err
	}
	defer w.referee.close()
	if w.section, err = newSection(); err != nil {
		return err
	}
	defer w.section.close()

	// Nothing here may take for ever: a lost wake-up of a library is a finding, not the end of the run.
	stuck := time.AfterFunc(w.spec.Settle+w.spec.For+15*time.Second+time.Duration(w.spec.Held)*time.Millisecond, func() {
		_, _ = fmt.Fprintln(out, Result{Problem: "stuck"})
		os.Exit(0)
	})
	defer stuck.Stop()
	do := map[string]func() (Result, error){
		"solo": w.solo, "crowd": w.crowd, "handoff": w.handoff, "old-del": w.oldDel,
		"turns": w.turns, "hold": w.hold, "wait": w.wait, "held": w.held, "left": w.left,
	}[w.spec.Scenario]
	w.ready = func() error {
		if _, err := fmt.Fprintln(out, "ready"); err != nil {
			return err
		}
		_, err := in.ReadString('\n')
		return err
	}
	result, err := do()
	if err != nil {
		return fmt.Errorf("%s, %s: %w", w.spec.Scenario, w.spec.Contestant, err)
	}
	if result.Problem == "" {
		result.Problem = w.referee.verdict()
	}
	_, err = fmt.Fprintln(out, result)
	return err
}

type worker struct {
	spec    Spec
	client  client
	admin   redis.Conn
	referee *referee
	section section
	ready   func() error
	waits   []int64 // of the last slice
}

// solo takes one lock again and again.
func (w *worker) solo() (Result, error) {
	ctx, cancel := context.WithCancel(context.Background()) // callers have contexts that can end
	defer cancel()
	problem, err := w.excludes(ctx)
	if err != nil {
		return Result{}, err
	}
	for range 300 {
		if err := w.client.Pair(ctx, w.spec.Key); err != nil {
			return Result{}, err
		}
	}
	r, err := w.inSlices(func(end time.Time) (int, error) {
		ops := 0
		for ; time.Now().Before(end); ops++ {
			if err := w.client.Pair(ctx, w.spec.Key); err != nil {
				return ops, err
			}
		}
		return ops, nil
	})
	if r.Problem = problem; problem == "" && err == nil {
		r.Problem, err = w.leftOver()
	}
	return r, err
}

// excludes checks that a second client does not get a lock that is held, and gets it afterwards.
func (w *worker) excludes(ctx context.Context) (string, error) {
	c, _ := contestantNamed(w.spec.Contestant)
	second, err := c.open(w.spec.Addr)
	if err != nil {
		return "", err
	}
	defer second.Close()
	first, err := c.open(w.spec.Addr) // not the one to be measured: what it does here may have its price later
	if err != nil {
		return "", err
	}
	defer first.Close()
	key := w.spec.Key + "-check"
	release, err := first.Acquire(ctx, key)
	if err != nil {
		return "", err
	}
	impatient, cancel := context.WithTimeout(ctx, 60*time.Millisecond)
	defer cancel()
	if _, err := second.Acquire(impatient, key); err == nil {
		return "a second client got a lock that was held", nil
	}
	if err := release(); err != nil {
		return "", err
	}
	patient, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		release, err := second.Acquire(patient, key)
		if err == nil {
			return "", release()
		}
		if errors.Is(err, errHeld) { // raw does not wait, and the release of others may take a moment
			continue
		}
		return "", fmt.Errorf("the lock was given back, and then: %w", err)
	}
}

// leftOver looks for keys that should have gone with the locks.
func (w *worker) leftOver() (string, error) {
	var last []string
	for range 100 {
		keys, err := redis.Strings(w.admin.Do("KEYS", "*"+w.spec.Key+"*"))
		if err != nil {
			return "", err
		}
		// A fencing counter, and the state of the gaps for old clients, outlive their locks on purpose, for a minute at most.
		keys = slices.DeleteFunc(keys, func(k string) bool {
			return strings.HasSuffix(k, ":fence") || strings.HasSuffix(k, ":yield")
		})
		if last = keys; len(keys) == 0 {
			return "", nil
		}
		time.Sleep(10 * time.Millisecond) // some libraries release in the background
	}
	return fmt.Sprintf("not released: %q", last[:min(len(last), 3)]), nil
}

// crowd has many goroutines take a lock each.
func (w *worker) crowd() (Result, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	took := make([][]int64, w.spec.Goroutines)
	pairs := func(end time.Time) (int, error) {
		failures := make([]error, w.spec.Goroutines)
		var all sync.WaitGroup
		for g := range w.spec.Goroutines {
			key := fmt.Sprintf("%s-%d", w.spec.Key, g)
			all.Go(func() {
				took[g] = took[g][:0]
				for now := time.Now(); now.Before(end) && failures[g] == nil; {
					if w.spec.Fresh {
						paired := make(chan error)
						go func() { paired <- w.client.Pair(ctx, key) }()
						failures[g] = <-paired
					} else {
						failures[g] = w.client.Pair(ctx, key)
					}
					began := now
					now = time.Now()
					took[g] = append(took[g], int64(now.Sub(began)))
				}
			})
		}
		all.Wait()
		w.waits = slices.Concat(took...)
		return len(w.waits), errors.Join(failures...)
	}
	if _, err := pairs(time.Now().Add(50 * time.Millisecond)); err != nil {
		return Result{}, err
	}
	r, err := w.inSlices(pairs)
	if err == nil {
		r.Problem, err = w.leftOver()
	}
	return r, err
}

// handoff passes one lock to and fro between two processes. Each waits until the other has it before it
// asks again, and holds it long enough for the other to be waiting by then.
func (w *worker) handoff() (Result, error) {
	ctx, cancel, err := w.start()
	if err != nil {
		return Result{}, err
	}
	defer cancel()
	r := Result{}
	for ctx.Err() == nil {
		release, err := w.client.Acquire(ctx, w.spec.Key)
		if err != nil {
			return r, unlessOver(ctx, err)
		}
		r.Handoffs = append(r.Handoffs, w.received()...)
		turn := w.referee.board.turn.Add(1)
		if err := w.pass(release); err != nil {
			return r, err
		}
		w.until(ctx, func() bool { return w.referee.board.turn.Load() != turn })
	}
	return r, nil
}

// oldDel is handoff from an old client, which the first process plays, to one that waits for its DEL.
func (w *worker) oldDel() (Result, error) {
	ctx, cancel, err := w.start()
	if err != nil {
		return Result{}, err
	}
	defer cancel()
	turn := &w.referee.board.turn
	acquire := w.client.Acquire
	mine := int64(1)
	if w.spec.Index == 0 {
		mine, acquire = 0, func(ctx context.Context, key string) (func() error, error) {
			for ctx.Err() == nil {
				n, err := redis.Int(w.admin.Do("SETNX", key, time.Now().Add(time.Minute).UnixMilli()))
				if n == 1 || err != nil {
					return func() error { _, err := w.admin.Do("DEL", key); return err }, err
				}
				time.Sleep(500 * time.Microsecond) // an old client polls
			}
			return nil, ctx.Err()
		}
	}
	r := Result{}
	for ctx.Err() == nil {
		w.until(ctx, func() bool { return turn.Load()%2 == mine })
		release, err := acquire(ctx, w.spec.Key)
		if err != nil {
			return r, unlessOver(ctx, err)
		}
		if since := w.received(); mine == 1 {
			r.Handoffs = append(r.Handoffs, since...)
		}
		turn.Add(1)
		if err := w.pass(release); err != nil {
			return r, err
		}
	}
	return r, nil
}

// start waits for the word; the context it returns ends with the measurement.
func (w *worker) start() (context.Context, context.CancelFunc, error) {
	// Connections are made now, not within the first wait.
	warm := w.spec.Key + "-warm"
	if c, _ := contestantNamed(w.spec.Contestant); c.list {
		if _, err := w.admin.Do("LPUSH", warm, "token"); err != nil {
			return nil, nil, err
		}
	}
	if err := w.client.Pair(context.Background(), warm); err != nil {
		return nil, nil, err
	}
	if err := w.ready(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.spec.Settle+w.spec.For)
	return ctx, cancel, nil
}

func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// received tells how long ago the last holder began to release.
func (w *worker) received() []int64 {
	w.referee.enter()
	if released := w.referee.board.released.Load(); released != 0 {
		return []int64{time.Now().UnixNano() - released}
	}
	return nil
}

// pass holds the lock for a while and gives it back.
func (w *worker) pass(release func() error) error {
	if err := w.section.stay(w.spec.Section); err != nil {
		return err
	}
	w.referee.leave()
	w.referee.board.released.Store(time.Now().UnixNano())
	return release()
}

func (w *worker) until(ctx context.Context, is func() bool) {
	for !is() && ctx.Err() == nil {
		time.Sleep(300 * time.Microsecond)
	}
}

// turns has everybody want the same lock all the time.
func (w *worker) turns() (Result, error) {
	ctx, cancel, err := w.start()
	if err != nil {
		return Result{}, err
	}
	defer cancel()
	r := Result{Turns: make([]int, w.spec.Goroutines)}
	waits, failures := make([][]int64, w.spec.Goroutines), make([]error, w.spec.Goroutines)
	cpu, start, end := cpuTime(), time.Now(), time.Time{}
	var mu sync.Mutex
	late := 0 // how many have not had a turn yet, where that is waited for
	if w.spec.Lockers {
		late = w.spec.Goroutines
	}
	counts := func(first bool) bool {
		mu.Lock()
		defer mu.Unlock()
		if !first || late == 0 {
			return late == 0
		}
		if late--; late == 0 {
			start = time.Now()
			time.AfterFunc(w.spec.For, func() {
				mu.Lock()
				defer mu.Unlock()
				end = time.Now()
				cancel()
			})
		}
		return false
	}
	var all sync.WaitGroup
	for g := range w.spec.Goroutines {
		all.Go(func() {
			inside, err := newSection()
			if err != nil {
				failures[g] = err
				return
			}
			defer inside.close()
			client := w.client
			if w.spec.Lockers {
				c, _ := contestantNamed(w.spec.Contestant)
				if client, err = c.open(w.spec.Addr); err != nil {
					failures[g] = err
					return
				}
				defer client.Close()
			}
			for first := true; ctx.Err() == nil; first = false {
				asked := time.Now()
				release, err := client.Acquire(ctx, w.spec.Key)
				if err != nil {
					failures[g] = unlessOver(ctx, err)
					return
				}
				counted := counts(first)
				if counted {
					waits[g] = append(waits[g], int64(time.Since(asked)))
				}
				w.referee.enter()
				if failures[g] = inside.stay(w.spec.Section); failures[g] != nil {
					return
				}
				if counted {
					r.Turns[g]++
				}
				w.referee.leave()
				if failures[g] = release(); failures[g] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	if !w.spec.Lockers {
		end = time.Now()
	} else if end.IsZero() {
		r.Problem = "not everybody had a turn"
	}
	r.CPU, r.Took = cpuTime()-cpu, end.Sub(start)
	for g := range r.Turns {
		r.Waits = append(r.Waits, waits[g]...)
		r.Ops += r.Turns[g]
	}
	return r, errors.Join(failures...)
}
