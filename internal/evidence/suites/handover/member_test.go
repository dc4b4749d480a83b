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
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
)

const memberOf = "LOCKMIGRATE_HANDOVER_MEMBER"

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

// start starts this test binary as a member.
func start(t testing.TB, r *referee, o orders) (*process, *exec.Cmd) {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), memberOf+"="+string(text))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.mu.Lock()
	defer r.mu.Unlock()
	require.NoError(t, cmd.Start())
	p := &process{name: o.Name, pid: cmd.Process.Pid}
	r.members[o.Name] = p
	return p, cmd
}

// serve is the process: it takes turns until it is killed.
func serve(text string) {
	var o orders
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "member:", err)
			os.Exit(1)
		}
	}
	check(json.Unmarshal([]byte(text), &o))
	old, _, err := halves[o.Old](o.OldAddr, o.TTL)
	check(err)
	new, _, err := halves[o.New](o.NewAddr, o.TTL)
	check(err)
	locker, err := handover.New(poolOf(o.Record, o.Lease/4), handover.Options{Namespace: namespace, Old: old, New: new, Lease: o.Lease, Member: o.Name})
	check(err)
	var all sync.WaitGroup
	for range o.Workers {
		conn, err := net.Dial("tcp", o.Referee)
		check(err)
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
