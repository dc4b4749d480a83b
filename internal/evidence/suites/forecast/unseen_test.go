package forecast

import (
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
)

// unseen are fleets that were written down after the forecast was made, and before they ran for the first time.
func unseen() []fleet {
	old := func(kind holders.Kind, lease time.Duration, hold, think duration, keys ...string) member {
		return member{kind: kind, lease: lease, hold: hold, think: think, keys: keys}
	}
	service := func(ttl time.Duration, hold, think duration, keys ...string) member {
		return member{lease: ttl, hold: hold, think: think, keys: keys}
	}

	six := same(6, old(holders.JedisLock, 2000*ms, between(200*ms, 1100*ms), between(0, 2500*ms), "cart:1"))
	six[1].clock, six[4].clock = 800*ms, -400*ms

	drifting := same(3, old(holders.JedisLock, 4000*ms, between(600*ms, 2600*ms), between(0, 600*ms), "stock:7"))
	drifting[2].clock, drifting[2].drift = 200*ms, 3000

	families := same(5, old(holders.JedisLock, 2500*ms, between(400*ms, 2000*ms), between(0, 800*ms), "stock:1"))
	families[2].keys = []string{"stock:1", "parcel:1", "parcel:2"}
	families[3].keys, families[4].keys = []string{"parcel:1", "parcel:2"}, []string{"parcel:1", "parcel:2"}
	families[0].clock, families[4].clock = 900*ms, -700*ms

	worn := same(4, old(holders.RedisPy, 3000*ms, mixed(between(300*ms, 1500*ms), between(3200*ms, 6000*ms), 0.05), between(0, 1000*ms), "report"))
	for i := range worn {
		worn[i].crash = 0.03
	}

	crowd := same(9, old(holders.RedisPy, 1500*ms, between(100*ms, 800*ms), between(200*ms, 3000*ms), "seat:1", "seat:2"))
	crowd[0].clock, crowd[3].clock, crowd[8].clock = 600*ms, 300*ms, -500*ms

	apart := same(5, old(holders.RedisPy, 1500*ms, between(200*ms, 2500*ms), between(0, 1000*ms)))
	for i := range apart {
		apart[i].keys, apart[i].clock = []string{fmt.Sprintf("job:%d", i)}, time.Duration(i-2)*20*time.Second
		if i < 2 {
			apart[i].kind, apart[i].keys = holders.JedisLock, []string{fmt.Sprintf("bill:%d", i)}
		}
	}

	early := append(same(3, old(holders.JedisLock, 2500*ms, between(600*ms, 2200*ms), between(0, 700*ms), "stock:1")),
		same(3, service(4000*ms, between(100*ms, 400*ms), between(200*ms, 1000*ms), "stock:1"))...)
	early[0].clock, early[1].clock = 500*ms, -600*ms

	slow := append(same(3, old(holders.RedisPy, 3000*ms, mixed(between(500*ms, 1500*ms), between(3100*ms, 4500*ms), 0.08), between(0, 1500*ms), "stock:1")),
		same(2, service(5000*ms, between(300*ms, 1000*ms), between(0, 1500*ms), "stock:1"))...)

	guarded := append(same(2, old(holders.JedisLock, 2500*ms, between(300*ms, 1000*ms), between(0, 1000*ms), "stock:1")),
		same(3, old(holders.JedisLock, 2500*ms, between(500*ms, 1900*ms), between(0, 600*ms), "stock:1"))...)
	guarded[0].sidecar, guarded[1].sidecar = true, true
	guarded[2].clock = 900 * ms

	polls := same(4, old(holders.RedisPy, 2200*ms, exponential(200*ms, 500*ms), between(0, 900*ms), "queue:mail"))
	for i, poll := range []time.Duration{30 * ms, 250 * ms, 600 * ms, 1000 * ms} {
		polls[i].poll = poll
	}
	polls[1].clock = -500 * ms

	return []fleet{
		{"six", "6 jedis-lock, lease 2 s, holds 0.2 to 1.1 s, clocks 0.8 s ahead and 0.4 s behind", six},
		{"drifting", "3 jedis-lock, lease 4 s, holds 0.6 to 2.6 s, a clock 0.2 s ahead that gains 3 ms a second", drifting},
		{"families", "5 jedis-lock on one key of one family and two of another, lease 2.5 s, holds 0.4 to 2 s, clocks 0.9 s ahead and 0.7 s behind", families},
		{"worn", "4 redis-py, lease 3 s, 5 % of the holds 3.2 to 6 s; 3 % of the turns end by kill -9", worn},
		{"crowd", "9 redis-py on two keys, lease 1.5 s, holds 0.1 to 0.8 s, clocks 0.6 and 0.3 s ahead and 0.5 s behind", crowd},
		{"apart", "2 jedis-lock and 3 redis-py, each with a key of its own, clocks up to 40 s ahead and behind, holds beyond the lease", apart},
		{"early", "3 jedis-lock, lease 2.5 s, holds 0.6 to 2.2 s, clocks 0.5 s ahead and 0.6 s behind; beside 3 Go services at stage bridge", early},
		{"slow", "3 redis-py, lease 3 s, 8 % of the holds 3.1 to 4.5 s; beside 2 Go services at stage bridge", slow},
		{"guarded", "3 jedis-lock, lease 2.5 s, holds 0.5 to 1.9 s, a clock 0.9 s ahead; beside 2 behind sidecars", guarded},
		{"polls", "4 redis-py, lease 2.2 s, exponential holds of 0.7 s, polls of 30 ms to 1 s, a clock 0.5 s behind", polls},
	}
}
