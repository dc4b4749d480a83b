package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// exchange is one turn of a machine: what it is told, at what time, and what it must want then.
type exchange struct {
	at    time.Duration
	reply Reply
	want  Step
}

// follow runs a script of exchanges. Of a command only the op is compared, unless the test gives more.
func follow(t *testing.T, m Machine, exchanges ...exchange) {
	t.Helper()
	for i, e := range exchanges {
		got := m.Next(Instant(0).Add(e.at), e.reply)
		assert.Equal(t, e.want.Kind, got.Kind, "step %d", i)
		assert.Equal(t, e.want.Verdict, got.Verdict, "step %d", i)
		assert.Equal(t, e.want.Sleep, got.Sleep, "step %d", i)
		assert.Equal(t, e.want.Command.Op, got.Command.Op, "step %d", i)
	}
}

func sends(op Op) Step { return send(Command{Op: op}) }
func ints(n ...int64) Reply {
	n = append(n, 0, 0)
	return Reply{Kind: Integer, Int: n[0], Int2: n[1], Int3: n[2]}
}
func granted(fence, ticket int64) Reply { return Reply{Kind: Granted, Int: fence, Int2: ticket} }
func deadline(d time.Duration) Instant  { return Instant(0).Add(d) }

var (
	begins  = Reply{}
	ok      = Reply{Kind: Text, Text: "OK"}
	nothing = Reply{Kind: Nil}
	woke    = Reply{Kind: Woke}
	refusal = Reply{Kind: Fault, Text: "READONLY"}
)

func TestModernAcquire(t *testing.T) {
	const s = time.Second
	plain := func() *ModernAcquire { return &ModernAcquire{Key: "k", Token: "t", TTL: 10 * s} }
	m := plain()
	follow(t, m, exchange{1 * s, begins, sends(SetToken)}, exchange{3 * s, ok, done(Acquired)})
	assert.Equal(t, deadline(11*s), m.Deadline(), "counted from before the command was sent")

	m = plain()
	follow(t, m, exchange{0, begins, sends(SetToken)}, exchange{0, nothing, done(Busy)})
	assert.Negative(t, m.Left())

	m = plain()
	follow(t, m, exchange{1 * s, begins, sends(SetToken)}, exchange{4 * s, silence, sends(Take)}, exchange{5 * s, ints(1), done(Acquired)})
	assert.Equal(t, deadline(14*s), m.Deadline(), "the question that was answered has extended the lease")

	follow(t, plain(), exchange{0, begins, sends(SetToken)}, exchange{0, silence, sends(Take)}, exchange{0, ints(0, 700), done(Busy)})
	follow(t, plain(), exchange{0, begins, sends(SetToken)}, exchange{0, silence, sends(Take)}, exchange{0, silence, done(Unsure)})
	follow(t, plain(), exchange{0, begins, sends(SetToken)}, exchange{0, refusal, done(Failed)})

	m = plain()
	m.Fence = "f"
	follow(t, m, exchange{0, begins, sends(Take)}, exchange{0, ints(1, 77), done(Acquired)})
	assert.EqualValues(t, 77, m.FenceToken())
	m = plain()
	m.Script = true
	follow(t, m, exchange{0, begins, sends(Take)}, exchange{0, ints(0, 700), done(Busy)})
	assert.Equal(t, 700*time.Millisecond, m.Left())
}

func TestModernQueue(t *testing.T) {
	const s = time.Second
	waiter := func() *ModernQueue {
		return &ModernQueue{Key: "k", Queue: "q", Token: "t", Channel: "c", TTL: 10 * s, Claim: 4 * s, MaxSleep: 30 * s, Tries: 3}
	}
	queued := []exchange{{1 * s, begins, sends(Queue)}, {2 * s, ints(-3, 5000, 41), sleep(5001 * time.Millisecond)}}

	m := waiter()
	follow(t, m, append(queued, exchange{2900 * time.Millisecond, granted(7, 41), done(Acquired)})...)
	assert.Equal(t, deadline(5*s), m.Deadline(), "the claim, from before the question that was answered with queued")
	assert.Equal(t, 3, m.Before())
	assert.True(t, m.Handed())
	assert.EqualValues(t, 7, m.FenceToken())

	t.Run("too little of the claim is certain", func(t *testing.T) {
		m := waiter()
		follow(t, m, append(queued, exchange{3 * s, granted(0, 41), sends(Queue)}, exchange{3 * s, ints(1), done(Acquired)})...)
		assert.Equal(t, deadline(13*s), m.Deadline())
		assert.False(t, m.Handed())
	})
	t.Run("nobody will renew it", func(t *testing.T) {
		m := waiter()
		m.ConfirmGrant = true
		follow(t, m, append(queued, exchange{2100 * time.Millisecond, granted(7, 41), sends(Queue)}, exchange{3 * s, ints(1, 7), done(Acquired)})...)
		assert.Equal(t, deadline(12100*time.Millisecond), m.Deadline())
	})
	t.Run("a late message of an earlier grant", func(t *testing.T) {
		// The first grant was missed, its claim is over, and we stand in line again: with another ticket.
		m := waiter()
		follow(t, m, append(queued, exchange{8 * s, woke, sends(Queue)}, exchange{8 * s, ints(0, 5000, 99), sleep(5001 * time.Millisecond)},
			exchange{8 * s, granted(0, 41), sends(Queue)}, exchange{8 * s, ints(0, 5000, 99), sleep(5001 * time.Millisecond)},
			exchange{9 * s, granted(0, 99), done(Acquired)})...)
	})
	t.Run("a grant without the fencing token that we need", func(t *testing.T) {
		m := waiter()
		m.Fence = "f"
		follow(t, m, append(queued, exchange{2 * s, granted(0, 41), sends(Queue)}, exchange{2 * s, ints(1, 12), done(Acquired)})...)
		assert.EqualValues(t, 12, m.FenceToken())
	})
	t.Run("no TTL on the key", func(t *testing.T) {
		follow(t, waiter(), exchange{0, begins, sends(Queue)}, exchange{0, ints(0, -1, 1), sleep(30 * s)})
		follow(t, waiter(), exchange{0, begins, sends(Queue)}, exchange{0, ints(0, 3_600_000, 1), sleep(30 * s)})
	})
	t.Run("silence", func(t *testing.T) {
		follow(t, waiter(), exchange{0, begins, sends(Queue)}, exchange{0, silence, sends(Queue)}, exchange{0, silence, sleep(200 * time.Millisecond)},
			exchange{0, woke, sends(Queue)}, exchange{0, silence, done(Unsure)})
		follow(t, waiter(), exchange{0, begins, sends(Queue)}, exchange{0, silence, sends(Queue)}, exchange{0, ints(0, 10, 1), sleep(11 * time.Millisecond)},
			exchange{0, woke, sends(Queue)}, exchange{0, silence, sends(Queue)}, exchange{0, ints(1), done(Acquired)})
	})
	t.Run("an old client's deletion", func(t *testing.T) {
		changed, status := Reply{Kind: Changed}, Reply{Kind: Text, Text: "OK"}
		first := []exchange{{1 * s, begins, sends(Queue)}, {2 * s, ints(0, -1, 41), sleep(30 * s)}}
		m := waiter()
		follow(t, m, append(first, exchange{5 * s, changed, sends(SetToken)}, exchange{6 * s, status, done(Acquired)})...)
		assert.Equal(t, deadline(15*s), m.Deadline(), "from before the SET")
		assert.True(t, m.EntryLeft())
		assert.False(t, m.Handed())
		for _, not := range []Reply{nothing, refusal} { // another was faster; or may we not use SET?
			m = waiter()
			follow(t, m, append(first, exchange{5 * s, changed, sends(SetToken)}, exchange{6 * s, not, sends(Queue)}, exchange{7 * s, ints(1), done(Acquired)})...)
			assert.Equal(t, deadline(16*s), m.Deadline())
			assert.False(t, m.EntryLeft(), "the script has removed it")
		}
		follow(t, waiter(), append(first, exchange{5 * s, changed, sends(SetToken)}, exchange{6 * s, silence, sends(Queue)},
			exchange{7 * s, silence, sleep(200 * time.Millisecond)}, exchange{7 * s, woke, sends(Queue)}, exchange{7 * s, silence, done(Unsure)})...)
		follow(t, waiter(), append(first, exchange{5 * s, woke, sends(Queue)})...)
		fenced, shared := waiter(), waiter()
		fenced.Fence, shared.Share = "f", s
		for _, m := range []*ModernQueue{fenced, shared} {
			follow(t, m, append(first, exchange{5 * s, changed, sends(Queue)})...)
		}
		for _, held := range []Reply{ints(-1, -1, 41), ints(0, 60_000, 41)} { // not the first in line; a key with a TTL
			follow(t, waiter(), exchange{0, begins, sends(Queue)}, exchange{0, held, sleep(30 * s)}, exchange{5 * s, changed, sends(Queue)})
		}

		leave := &ModernLeave{}
		follow(t, leave, exchange{0, begins, sends(Unqueue)}, exchange{0, ints(1), done(Released)})
		leave = &ModernLeave{}
		follow(t, leave, exchange{0, begins, sends(Unqueue)}, exchange{0, silence, sends(Unqueue)}, exchange{0, ints(0), done(Released)})
		follow(t, &ModernLeave{}, exchange{0, begins, sends(Unqueue)}, exchange{0, silence, sends(Unqueue)}, exchange{0, silence, done(Unsure)})
		follow(t, &ModernLeave{}, exchange{0, begins, sends(Unqueue)}, exchange{0, refusal, done(Unsure)})
	})
	t.Run("another type", func(t *testing.T) {
		wrong := Reply{Kind: Fault, Text: "ERR Error running script: @user_script: 20: WRONGTYPE Operation against a key"}
		follow(t, waiter(), exchange{0, begins, sends(Queue)}, exchange{0, wrong, done(Foreign)})
		follow(t, waiter(), exchange{0, begins, sends(Queue)}, exchange{0, refusal, done(Failed)})
		follow(t, waiter(), exchange{0, begins, sends(Queue)}, exchange{0, broken, done(Unsure)})
	})
}

// broken is the error of a script that had begun.
var broken = Reply{Kind: Fault, Text: "ERR The user executing the script can't run this command or subcommand script: 0a, on @user_script:7."}

func TestModernRenewAndRelease(t *testing.T) {
	const s = time.Second
	r := &ModernRenew{Key: "k", Token: "t", TTL: 10 * s}
	follow(t, r, exchange{1 * s, begins, sends(Extend)}, exchange{9 * s, ints(1), done(Renewed)})
	assert.Equal(t, deadline(11*s), r.Deadline())
	follow(t, &ModernRenew{}, exchange{0, begins, sends(Extend)}, exchange{0, ints(0), done(Lost)})
	follow(t, &ModernRenew{}, exchange{0, begins, sends(Extend)}, exchange{0, silence, done(Unsure)})
	follow(t, &ModernRenew{}, exchange{0, begins, sends(Extend)}, exchange{0, refusal, done(Failed)})
	follow(t, &ModernRenew{Redisson: true}, exchange{0, begins, sends(RedissonExtend)}, exchange{0, ints(1), done(Renewed)})

	for op, m := range map[Op]ModernRelease{CompareDel: {}, QueueRelease: {Queue: "q"}} {
		for _, c := range []struct {
			replies []Reply
			want    Verdict
		}{
			{[]Reply{ints(1)}, Released},
			{[]Reply{ints(2)}, Released},
			{[]Reply{ints(0)}, NotOurs},
			{[]Reply{silence, ints(0)}, Released}, // by our doing, or by the end of the lease
			{[]Reply{silence, ints(1)}, Released},
			{[]Reply{silence, silence}, Unsure},
		} {
			m, exchanges := m, []exchange{{0, begins, sends(op)}}
			for i, reply := range c.replies {
				want := sends(op)
				if i == len(c.replies)-1 {
					want = done(c.want)
				}
				exchanges = append(exchanges, exchange{0, reply, want})
			}
			follow(t, &m, exchanges...)
		}
	}
	follow(t, &ModernRelease{}, exchange{0, begins, sends(CompareDel)}, exchange{0, refusal, done(Failed)})
	for _, c := range []struct {
		reply Reply
		want  Verdict
	}{{ints(1), Released}, {ints(0), NotOurs}, {refusal, Failed}, {silence, 0}} { // a key beside the lock's may be denied
		m := &ModernRelease{Queue: "q"}
		want := done(c.want)
		if c.want == 0 {
			want = sends(CompareDel)
		}
		follow(t, m, exchange{0, begins, sends(QueueRelease)}, exchange{0, refusal, sends(CompareDel)}, exchange{0, c.reply, want})
	}
	m := &ModernRelease{Queue: "q", Entry: true}
	follow(t, m, exchange{0, begins, sends(QueueRelease)}, exchange{0, ints(0), done(Released)})
	m = &ModernRelease{Queue: "q", Entry: true, Held: true}
	follow(t, m, exchange{0, begins, sends(QueueRelease)}, exchange{0, ints(0), done(NotOurs)})
}

func TestModernConfirm(t *testing.T) {
	m := &ModernConfirm{Renew: ModernRenew{TTL: time.Second}, Replicas: 2, Timeout: time.Second}
	follow(t, m, exchange{0, begins, sends(Extend)}, exchange{0, ints(1), sends(WaitReplicas)}, exchange{0, ints(1), done(Busy)})
	assert.Equal(t, "1 of 2 replicas had it within 1s", m.Says())
	follow(t, &ModernConfirm{Replicas: 2}, exchange{0, begins, sends(Extend)}, exchange{0, ints(1), sends(WaitReplicas)}, exchange{0, ints(2), done(Renewed)})
	follow(t, &ModernConfirm{Replicas: 2}, exchange{0, begins, sends(Extend)}, exchange{0, ints(0), done(Lost)})
	follow(t, &ModernConfirm{Replicas: 2}, exchange{0, begins, sends(Extend)}, exchange{0, ints(1), sends(WaitReplicas)}, exchange{0, silence, done(Unsure)})
}

func TestRedissonMachines(t *testing.T) {
	take := func() *ModernAcquire { return &ModernAcquire{Key: "k", Token: "h", TTL: time.Second, Redisson: true} }
	follow(t, take(), exchange{0, begins, sends(RedissonTake)}, exchange{0, nothing, done(Acquired)})
	m := take()
	follow(t, m, exchange{0, begins, sends(RedissonTake)}, exchange{0, ints(300), done(Busy)})
	assert.Equal(t, 300*time.Millisecond, m.Left())
	m = take()
	follow(t, m, exchange{0, begins, sends(RedissonTake)}, exchange{5, silence, sends(RedissonTake)}, exchange{7, nothing, done(Acquired)})
	assert.Equal(t, Instant(5).Add(time.Second), m.Deadline())
	follow(t, take(), exchange{0, begins, sends(RedissonTake)}, exchange{0, silence, sends(RedissonTake)}, exchange{0, silence, done(Unsure)})
	follow(t, take(), exchange{0, begins, sends(RedissonTake)}, exchange{0, refusal, done(Failed)})

	give := func() *ModernRelease { return &ModernRelease{Redisson: true} }
	follow(t, give(), exchange{0, begins, sends(RedissonRelease)}, exchange{0, ints(1), done(Released)})
	follow(t, give(), exchange{0, begins, sends(RedissonRelease)}, exchange{0, ints(0), done(NotOurs)})
	follow(t, give(), exchange{0, begins, sends(RedissonRelease)}, exchange{0, silence, sends(RedissonRelease)}, exchange{0, ints(1), done(Released)})
	follow(t, give(), exchange{0, begins, sends(RedissonRelease)}, exchange{0, silence, sends(RedissonRelease)}, exchange{0, ints(0), done(Released)})
	follow(t, give(), exchange{0, begins, sends(RedissonRelease)}, exchange{0, silence, sends(RedissonRelease)}, exchange{0, silence, done(Unsure)})
	follow(t, give(), exchange{0, begins, sends(RedissonRelease)}, exchange{0, refusal, done(Failed)})

	for op, m := range map[Op]Machine{RedissonTake: take(), RedissonRelease: give()} { // a refusal says nothing about a command before it
		follow(t, m, exchange{0, begins, sends(op)}, exchange{0, silence, sends(op)}, exchange{0, refusal, done(Unsure)})
	}
}
