package handover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
)

// orders are what a member's process is told.
type orders struct {
	Name                     string
	Old, New                 string // kinds of halves
	OldAddr, NewAddr, Record string
	Referee                  string
	TTL, Lease               time.Duration
	Workers, Keys            int
	Pause                    time.Duration // between two turns, on average
	Long                     int           // one turn of so many is longer than the lease
}

// start starts this test binary as a member. The referee knows it before it says anything.
func start(t testing.TB, r *referee, o orders) *process {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	p := &process{name: o.Name}
	r.mu.Lock()
	r.members[o.Name] = p
	r.mu.Unlock()
	p.Holder = holders.StartGo(t, "member", "-", holders.Arg("orders", string(text)))
	return p
}

// serve is the process: it takes turns until it is killed.
func serve(_ *bufio.Scanner, say func(holders.Event), args map[string]string) error {
	var o orders
	if err := json.Unmarshal([]byte(args["orders"]), &o); err != nil {
		return err
	}
	old, _, err := halves[o.Old](o.OldAddr, o.TTL)
	if err != nil {
		return err
	}
	new, _, err := halves[o.New](o.NewAddr, o.TTL)
	if err != nil {
		return err
	}
	locker, err := handover.New(poolOf(o.Record, o.Lease/4), handover.Options{Namespace: namespace, Old: old, New: new, Lease: o.Lease, Member: o.Name})
	if err != nil {
		return err
	}
	say(holders.Event{Event: "ready", ID: o.Name})
	var all sync.WaitGroup
	for range o.Workers {
		conn, err := net.Dial("tcp", o.Referee)
		if err != nil {
			return err
		}
		answers := bufio.NewScanner(conn)
		tell := func(format string, args ...any) {
			fmt.Fprintf(conn, format+"\n", args...)
			if !answers.Scan() {
				os.Exit(0) // the test is over
			}
		}
		fmt.Fprintln(conn, o.Name)
		all.Go(func() {
			for {
				turn(locker, o, tell)
			}
		})
	}
	all.Wait()
	return nil
}

func turn(locker handover.Locker, o orders, tell func(string, ...any)) {
	if o.Pause > 0 {
		time.Sleep(rand.N(2 * o.Pause))
	}
	lock, err := locker.Acquire(context.Background(), fmt.Sprint("lock.", rand.IntN(o.Keys)))
	if err != nil {
		time.Sleep(20 * time.Millisecond) // as a service would
		return
	}
	work, long := time.Duration(1+rand.IntN(3))*time.Millisecond, "short"
	if rand.IntN(o.Long) == 0 { // lives by its renewals
		work, long = 2*o.TTL, "long"
	}
	tell("in %s %v %s", lock.Key(), lock.Stage(), long)
	timer := time.NewTimer(work)
	select {
	case <-timer.C:
	case <-lock.Context().Done():
	}
	timer.Stop()
	// One who was stopped has both behind it: what it may still do, its deadline says.
	if lock.Context().Err() != nil || !time.Now().Before(lock.Expiry()) {
		tell("out told")
	} else {
		tell("out done")
	}
	bounded, cancel := context.WithTimeout(context.Background(), o.TTL)
	defer cancel()
	switch err := lock.Release(bounded); {
	case err == nil:
		tell("released")
	case errors.Is(err, lockmigrate.ErrLost):
		tell("lost")
	default:
		tell("unknown")
	}
}
