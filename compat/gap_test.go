package compat_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// yields are options of bridge clients whose gaps get rarer within a test's time. A gap is long enough for a
// legacy client that looks each 100 ms to be late once.
func yields(change ...func(*compat.Options)) compat.Options {
	return quick(append([]func(*compat.Options){func(o *compat.Options) {
		o.YieldFor, o.YieldAfter, o.YieldAtMost = 200*time.Millisecond, 150*time.Millisecond, 1200*time.Millisecond
	}}, change...)...)
}

// crowd has bridge clients of several processes leave no moment between them on a key.
type crowd struct {
	turns atomic.Int64
	end   func()
}

func newCrowd(t *testing.T, pool lockmigrate.Pool, o compat.Options) *crowd {
	c := &crowd{}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 {
		l := opened(t, pool, o)
		for range 2 {
			all.Go(func() {
				for ctx.Err() == nil {
					k, err := l.Acquire(ctx, "orders")
					if err != nil {
						continue
					}
					c.turns.Add(1)
					time.Sleep(2 * time.Millisecond) // the section
					_ = k.Release(context.WithoutCancel(ctx))
				}
			})
		}
	}
	c.end = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(c.end)
	return c
}

// quietGaps returns how many gaps in a row were quiet, as the server has it.
func quietGaps(s *redistest.Server) int {
	streak := s.Value(protocol.StreakKey("orders"))
	return len(streak) - len(strings.TrimLeft(streak, "0"))
}

func awaitRareGaps(t *testing.T, s *redistest.Server) {
	t.Helper()
	redistest.Await(t, "gaps as rare as they get", time.Minute, func() bool { return quietGaps(s) == 3 })
}

// TestGapsGetRarerWithoutLegacyClients: where nobody uses the gaps that bridge clients leave, those who
// listen find out, and leave fewer; those who cannot listen go on as before.
func TestGapsGetRarerWithoutLegacyClients(t *testing.T) {
	s := redistest.Real(t)
	deaf := newCrowd(t, s.Untracked(), yields())
	const stretch = 3 * time.Second
	before := deaf.turns.Load()
	for end := time.Now().Add(stretch); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if n := quietGaps(s); n > 0 {
			t.Fatalf("%d quiet gaps, and nobody listens", n)
		}
	}
	always := deaf.turns.Load() - before
	deaf.end()

	crowd := newCrowd(t, s.Pool(), yields())
	awaitRareGaps(t, s)
	before = crowd.turns.Load()
	time.Sleep(stretch)
	rare := crowd.turns.Load() - before
	t.Logf("turns in %v: %d with a gap after each %v, %d with rare gaps", stretch, always, 150*time.Millisecond, rare)
	if rare < always*5/4 { // 150/(150+200) of the time against 1200/(1200+200)
		t.Errorf("turns in %v: %d with a gap after each 150 ms, %d with rare gaps", stretch, always, rare)
	}
}

// TestUsedGapIsNotQuiet: a client that takes the key in each gap and has given it back before anybody can look
// is heard all the same, and gaps come as often as ever.
func TestUsedGapIsNotQuiet(t *testing.T) {
	s := redistest.Real(t)
	newCrowd(t, s.Pool(), yields())
	awaitRareGaps(t, s)
	touch := redis.NewScript(1, `if redis.call('SETNX', KEYS[1], 1) == 1 then return redis.call('DEL', KEYS[1]) end return 0`)
	conn := s.Conn()
	used, heard, most := 0, false, 0
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(40 * time.Millisecond) {
		n, err := redis.Int(touch.Do(conn, "orders"))
		if err != nil {
			t.Fatal(err)
		}
		used += n
		heard = heard || quietGaps(s) == 0 // at the end of the first gap
		if heard {
			most = max(most, quietGaps(s))
		}
	}
	if used < 20 || !heard || most > 0 {
		t.Errorf("the key was taken %d times, heard %v; then %d gaps in a row were quiet", used, heard, most)
	}
	awaitRareGaps(t, s) // when that is over
}

// TestLegacyClientWhenGapsAreRare: a legacy client that comes when gaps are rarest waits for YieldAtMost, a
// hold and a gap at most, and from its turn on gaps come as often as ever. A turn of no
// length between two bridge holders, to whom no gap was of use, may go unnoticed; but not one after the other.
func TestLegacyClientWhenGapsAreRare(t *testing.T) {
	s := redistest.Real(t)
	o := yields()
	newCrowd(t, s.Pool(), o)
	old, err := legacy.New(s.Pool(), legacy.Options{Lease: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	turn := func(sinceWhen string, bound time.Duration, section time.Duration) {
		t.Helper()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		k, err := old.Acquire(ctx, "orders")
		if err != nil {
			t.Fatalf("the legacy client, %s: %v", sinceWhen, err)
		}
		if took := time.Since(began); took > bound {
			t.Errorf("the legacy client, %s, waited for %v, want %v", sinceWhen, took, bound)
		}
		time.Sleep(section)
		if err := k.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
	}
	const slack = 250 * time.Millisecond
	yieldFor := o.YieldFor + o.YieldFor/8 // a release that comes late leaves the end as it is
	noticed := func(s *redistest.Server, within time.Duration) bool {
		for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if s.Value(protocol.StreakKey("orders")) != "" && quietGaps(s) == 0 {
				return true
			}
		}
		return false
	}
	for _, section := range []time.Duration{0, 20 * time.Millisecond} { // too short to be seen on the key, and not
		for try := 0; ; try++ {
			awaitRareGaps(t, s)
			turn("when gaps are rarest", o.YieldAtMost+yieldFor+slack, section)
			if noticed(s, 2*yieldFor) {
				break
			}
			if t.Logf("nobody has noticed a turn of %v", section); try == 7 {
				t.Fatal("gaps are as rare as before")
			}
		}
		turn("after its turn", o.YieldAfter+2*yieldFor+slack, section)
	}
}
