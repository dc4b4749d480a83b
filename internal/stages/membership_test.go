package stages

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

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
