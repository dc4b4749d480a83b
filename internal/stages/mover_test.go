package stages

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
)

// A wait whose time is over in the midst of a look, at whichever of its two round trips, finishes the look and says who was in
// the way; and a step that nobody is in the way of is made.
func TestALookIsFinished(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		a := newFake(t, store, "a")
		a.report()
		for slow := range 4 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			route := s.Route("operator")
			route.Next(1+slow, world.Fault{LateCommand: 20 * time.Millisecond})
			mover := Mover{Store: &Store{Pool: route.Pool(), Namespace: store.Namespace, ReplyTimeout: time.Minute}, Look: time.Millisecond}
			err := mover.Run(ctx, Bridge, func(View, []Blocker) {})
			cancel()
			var waited *Waited
			assert.False(t, !errors.As(err, &waited) || !errors.Is(err, context.DeadlineExceeded) || waited.Blockers[0].Member != "a", "slow at round trip %d: %v", slow, err)
		}
		a.report()
		ctx := redistest.Bounded(t, 20*time.Millisecond)
		route := s.Route("operator")
		route.Decide = func([]string) world.Fault { return world.Fault{LateCommand: 20 * time.Millisecond} }
		mover := Mover{Store: &Store{Pool: route.Pool(), Namespace: store.Namespace, ReplyTimeout: time.Minute}, Look: time.Millisecond}
		assert.NoError(t, mover.Run(ctx, Bridge, func(View, []Blocker) {}), "nobody was in the way:")
	})
}

// Before has the last word, once nobody is in the way, and not earlier; its error ends the move and nothing is written.
func TestBeforeHasTheLastWord(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		a := newFake(t, store, "a")
		a.report()
		var order []string
		refusal := errors.New("something stands on a key")
		answer := refusal
		mover := Mover{Store: store, Look: time.Millisecond, Before: func(_ context.Context, view View) error {
			order = append(order, "before")
			return answer
		}}
		wait := func(View, []Blocker) {
			order = append(order, "wait")
			a.report() // the one in the way catches up
		}
		assert.ErrorIs(t, mover.Run(t.Context(), Bridge, wait), refusal, "refused")
		if view, err := store.Show(t.Context()); err != nil || view.Record.Epoch != 1 {
			t.Errorf("a move that was refused: %+v, %v", view.Record, err)
		}
		answer = nil
		assert.NoError(t, mover.Run(t.Context(), Bridge, wait))
		assert.False(t, len(order) != 3 || order[0] != "wait" || order[1] != "before" || order[2] != "before", "asked in the order %v", order)
	})
}

// Follow returns when every member that lives runs the record; a silent one and one that cannot run it are not waited for.
func TestFollowWaitsForThoseWhoAct(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := newStore(s)
		create(t, store)
		a, unfit, silent := newFake(t, store, "a"), newFake(t, store, "unfit"), newFake(t, store, "silent")
		unfit.Misfit = "another dialect"
		silent.Lease = time.Millisecond
		a.report()
		unfit.Seq++
		require.NoError(t, failed(store.Join(t.Context(), unfit.Report)))
		silent.report()
		time.Sleep(5 * time.Millisecond) // its lease, by the server's clock
		waits := 0
		mover := Mover{Store: store, Look: time.Millisecond}
		err := mover.Follow(t.Context(), Legacy, func(view View) {
			waits++
			if late, atMost := view.ChangingOver(); len(late) != 1 || late[0].ID != "a" || atMost <= 0 || atMost > a.Lease {
				t.Errorf("changing over: %+v within %v", late, atMost)
			}
			a.report()
		})
		if err != nil || waits != 1 {
			t.Errorf("%v after %d waits", err, waits)
		}
		a.Epoch, a.Stage = -1, -1
		a.Seq++
		require.NoError(t, failed(store.Join(t.Context(), a.Report)))
		ctx := redistest.Bounded(t, 20*time.Millisecond)
		var waited *Waited
		if err := mover.Follow(ctx, Legacy, func(View) {}); !errors.As(err, &waited) || waited.Blockers[0].Member != "a" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("given up: %v", err)
		}
		err = mover.Follow(t.Context(), Legacy, func(View) {
			s.Do("HSET", RecordKey("orders"), "stage", int(Bridge)) // another operator, whom nobody blocks
		})
		if !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), "it is bridge") {
			t.Errorf("moved elsewhere meanwhile: %v", err)
		}
	})
}

// A member follows its record: it reports the epoch under which something may still act, a failure that is no end leaves its lease alone, and
// the document of the namespace says the same.
func TestAMemberFollows(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store, ctx := newStore(s), t.Context()
		create(t, store)
		m := NewMembership(store, "pay")
		require.False(t, m.Known())
		order, err := m.Hello(ctx)
		require.NoError(t, err)
		require.True(t, m.Known())
		require.Equal(t, Legacy, order.Stage)

		f, acts, wake := Following{}, false, make(chan struct{}, 1)
		working, stop := context.WithTimeout(ctx, 20*time.Second)
		defer stop()
		var epochs []int64 // that were reported
		Keep(working, time.Minute, wake, func(ctx context.Context) (news bool, err error) {
			r := Report{Lease: time.Minute, Longest: time.Second, Lowest: -1, Highest: -1}
			earlier := acts && f.Epoch == 2
			f.Says(&r, earlier)
			epochs = append(epochs, r.Epoch)
			order, until, err := m.Report(ctx, r)
			require.NoError(t, err)
			switch news = f.Obey(order, until, earlier); len(epochs) {
			case 2: // it runs epoch 1, and begins something
				acts = true
				require.Empty(t, move(t, store, Bridge))
				wake <- struct{}{}
			case 4: // it was told of epoch 2 before
				require.Equal(t, "pay", m.ID[:3])
				require.Equal(t, m.ID+":behind", move(t, store, Modern))
				acts = false
				wake <- struct{}{}
			case 5:
				stop()
			}
			return news, nil
		})
		assert.Equal(t, []int64{-1, 1, 1, 1, 2}, epochs)
		assert.True(t, f.Lives())
		assert.True(t, Ends(ErrApart) && !Ends(ErrLate))

		view, err := store.Show(ctx)
		require.NoError(t, err)
		doc := view.Document([]Blocker{{Member: m.ID, Why: "holds", Wait: 1500 * time.Millisecond, Stage: Legacy}})
		assert.Equal(t, "bridge", doc.Stage)
		assert.Equal(t, "bridge", doc.Members[0].Stage)
		assert.Equal(t, BlockerDocument{m.ID, "holds", 1500, m.ID + " is silent and may hold a lock of stage legacy for another 1.5s"}, doc.BlockedBy[0])
		names, err := store.Names(ctx)
		require.NoError(t, err)
		assert.Equal(t, []string{"orders"}, names)

		f.End()
		assert.False(t, f.Lives())
		require.NoError(t, m.Leave(ctx))
		assert.Empty(t, move(t, store, Modern), "nobody is in the way of it any more")
	})
}

// The halves of a handover are those of its marks: they stay as they are, and a member with others is told in what.
func TestHalves(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		h, err := Marked(ctx, "to-b", time.Second, nil, s.Pool())
		require.NoError(t, err)
		again, err := Marked(ctx, "to-b", time.Second, nil, s.Pool())
		require.NoError(t, err)
		assert.Equal(t, h, again)
		h.Old.Name, again.Old.Name = "redsync", "redsync"
		assert.NoError(t, h.Differs(again))
		again.New.Mark = "0"
		assert.ErrorContains(t, h.Differs(again), "New of this process is the server marked 0, the record's is the server marked "+h.New.Mark)
		again.Old.Name = "other"
		assert.ErrorContains(t, h.Differs(again), `Old of this process is "other", the record's is "redsync"`)
	})
}
