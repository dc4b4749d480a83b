package handover_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/modern"
)

// town is two servers, and the record of a handover on the second.
type town struct {
	*world.World
	a, b  *world.Server
	store *stages.Store
}

func newTown(w *world.World) *town {
	t := &town{World: w, a: w.Server(), b: w.Server()}
	t.store = &stages.Store{Pool: t.b.Pool(), Namespace: "to-b", ReplyTimeout: 5 * time.Second, By: "test"}
	old, err := stages.WriteMark(context.Background(), t.a.Pool(), "to-b", time.Second)
	require.NoError(w, err)
	new, err := stages.WriteMark(context.Background(), t.b.Pool(), "to-b", time.Second)
	require.NoError(w, err)
	require.NotEqual(w, old, new)
	require.NoError(w, t.store.Init(context.Background(), stages.Record{Patterns: []string{"lock.*"}, Handover: &stages.Halves{Old: stages.Half{Mark: old}, New: stages.Half{Mark: new}}}))
	return t
}

// member is a process with both halves and a Locker over them.
type member struct {
	handover.Locker
	old, new          lockmigrate.Locker
	toA, toB, toClerk *world.Route // clerk: the record's server
}

const lease = 6 * time.Second

func (t *town) member(name string, change ...func(*handover.Options)) *member {
	p := t.Process(name)
	m := &member{toA: p.Route(t.a), toB: p.Route(t.b), toClerk: p.Route(t.b)}
	var err error
	m.old, err = compat.New(m.toA.Pool(), compat.Options{TTL: 3 * time.Second, FenceTTL: time.Hour})
	require.NoError(t, err)
	m.new, err = modern.New(m.toB.Pool(), modern.Options{TTL: 3 * time.Second, FenceTTL: time.Hour})
	require.NoError(t, err)
	o := handover.Options{Namespace: "to-b", Old: m.old, New: m.new, Lease: lease, Member: name}
	for _, f := range change {
		f(&o)
	}
	m.Locker, err = handover.New(m.toClerk.Pool(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = m.Close()
		_, _ = m.old.Close(), m.new.Close()
	})
	return m
}

// move makes a step as soon as nobody is in the way.
func (t *town) move(to lockmigrate.Stage) {
	t.Helper()
	for {
		view, err := t.store.Show(context.Background())
		require.NoError(t, err)
		blockers, err := t.store.Move(context.Background(), view.Record.Epoch, to, true)
		require.NoError(t, err)
		if len(blockers) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// reach is move, and the time in which every member follows.
func (t *town) reach(to lockmigrate.Stage) {
	t.Helper()
	t.move(to)
	time.Sleep(lease)
}

// joins is member, and waits until it is one.
func (t *town) joins(name string) *member {
	t.Helper()
	m := t.member(name)
	ready(t, m)
	return m
}

// theirs is a member one of whose halves is a lock of another library, as the record has it.
func (t *town) theirs(old bool, f handover.Funcs[int], change ...func(*handover.Options)) *member {
	t.Helper()
	lock := handover.Wrap("theirs", f)
	t.Cleanup(func() { _ = lock.Close() })
	view, err := t.store.Show(context.Background())
	require.NoError(t, err)
	to, halves := view.Record, *view.Record.Handover
	half := map[bool]*stages.Half{true: &halves.Old, false: &halves.New}[old]
	*half, to.Handover = stages.Half{Name: "theirs"}, &halves
	_, err = t.store.Set(context.Background(), to.Epoch, view.Record, to, true)
	require.NoError(t, err)
	m := t.member("m", append(change, func(o *handover.Options) {
		*map[bool]*lockmigrate.Locker{true: &o.Old, false: &o.New}[old] = lock
	})...)
	ready(t, m)
	return m
}

// inTown runs a test in a town of its own.
func inTown(t *testing.T, seed uint64, test func(*town)) {
	t.Helper()
	world.Run(t, seed, func(w *world.World) { test(newTown(w)) })
}

func ready(t *town, members ...*member) {
	t.Helper()
	for _, m := range members {
		require.NoError(t, m.Ready(context.Background()))
	}
}

// referee sees who is inside, and looks at no lock.
type referee struct {
	*redistest.Referee
	fence atomic.Int64
	back  atomic.Int64 // fencing tokens that did not grow
}

func (t *town) referee() *referee { return &referee{Referee: redistest.NewReferee(t)} }

// work takes turns until ctx ends. A turn ends with its context, or after its hold.
func (r *referee) work(ctx context.Context, m *member, hold time.Duration) {
	for ctx.Err() == nil {
		lock, err := m.Acquire(ctx, key)
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		r.Turn(func() {
			if lock.Fence() <= r.fence.Load() {
				r.back.Add(1)
			}
			r.fence.Store(max(r.fence.Load(), lock.Fence()))
			select {
			case <-lock.Context().Done():
			case <-time.After(hold):
			}
		})
		_ = lock.Release(context.Background())
	}
}
