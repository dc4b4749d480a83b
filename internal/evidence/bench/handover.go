package bench

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/modern"
)

// openHandover is package handover at a stage, from the bridge of package compat to package modern, over one server: what it costs beside its halves.
func openHandover(stage lockmigrate.Stage) func(t testing.TB, addr string) client {
	return func(t testing.TB, addr string) client {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		store := &stages.Store{Pool: poolFor(addr), Namespace: "bench-" + stage.String(), ReplyTimeout: 5 * time.Second}
		check(t, at(ctx, store, stage))
		a, b, c := quietPool(addr), quietPool(addr), poolFor(addr)
		old, err := newCompat(a)
		check(t, err)
		new, err := modern.New(b, modern.Options{TTL: ttl})
		check(t, err)
		locker, err := handover.New(c, handover.Options{Namespace: store.Namespace, Old: old, New: new, NewKey: func(key string) string { return key + "-new" }})
		check(t, err)
		check(t, locker.Ready(ctx))
		return clientOf(t, locker.Acquire, locker.Close, old.Close, new.Close, a.Close, b.Close, c.Close)
	}
}

// at creates the record, unless an earlier client has, and moves it to a stage.
func at(ctx context.Context, store *stages.Store, to lockmigrate.Stage) error {
	view, err := store.Show(ctx)
	if errors.Is(err, stages.ErrNoRecord) {
		var mark string
		if mark, err = stages.WriteMark(ctx, store.Pool, store.Namespace, time.Second); err != nil {
			return err
		}
		keys := []string{"bench-handover-" + to.String() + "-*"}
		if os.Getenv("BENCH_SERVER") == "" { // no other contestant is on it
			keys = append(keys, "check")
		}
		err = store.Init(ctx, stages.Record{Patterns: keys, Handover: &stages.Halves{Old: stages.Half{Mark: mark}, New: stages.Half{Mark: mark}}})
	}
	for err == nil {
		if view, err = store.Show(ctx); err != nil || view.Record.Stage == to {
			break
		}
		_, err = store.Move(ctx, view.Record.Epoch, view.Record.Stage+1, true)
	}
	return err
}
