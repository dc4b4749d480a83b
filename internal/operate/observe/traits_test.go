package observe

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOneTrait: a dialect that hangs on one trait is in doubt, and so is one whose traits contradict each other. The clients are those of
// docs/clients.md, and copies of them that delete without a look.
func TestOneTrait(t *testing.T) {
	const lease = 10 * time.Second
	float := func(tp *tape, ahead time.Duration) string {
		return fmt.Sprintf("%.6f", float64(tp.at.Add(ahead+time.Millisecond))/1e9)
	}
	whole := func(tp *tape, ahead time.Duration) string { return tp.sec(ahead) + ".0" }
	// turn is one turn. Looks: it reads before it deletes. Expire: a TTL follows.
	turn := func(text func(*tape, time.Duration) string, ahead time.Duration, looks, expire bool) func(tp *tape, addr, key string) {
		return func(tp *tape, addr, key string) {
			tp.run(addr, "SETNX", key, text(tp, ahead))
			if expire {
				tp.run(addr, "EXPIRE", key, "10")
			}
			if looks {
				tp.run(addr, "GET", key)
			}
			tp.run(addr, "DEL", key)
		}
	}
	// over is a takeover of a dead holder's lock, with a text that is sent twice or made anew.
	over := func(text func(*tape, time.Duration) string, ahead time.Duration, anew bool) func(tp *tape, addr, key string) {
		return func(tp *tape, addr, key string) {
			tp.run("9.9.9.9:1", "SETNX", key, text(tp, ahead))
			tp.wait(lease + 2*time.Second)
			mine := text(tp, ahead)
			tp.run(addr, "SETNX", key, mine)
			tp.run(addr, "GET", key)
			if anew {
				mine = text(tp, ahead)
			}
			tp.run(addr, "GETSET", key, mine)
			tp.run(addr, "DEL", key)
		}
	}
	second := time.Second
	for name, c := range map[string]struct {
		does        []func(tp *tape, addr, key string)
		dialect, or string
		least, most time.Duration // of the lease in the profile
	}{
		"redis-py 2.7.6":             {does(turn(whole, lease, true, false)), "redispy-float", "", lease, lease},
		"redis-py 2.4":               {does(turn(float, lease, true, false)), "redispy-float", "", lease, lease},
		"a copy that deletes":        {does(turn(float, lease, false, false)), "redis-objects", "redispy-float", lease - second, lease},
		"a copy that takes over":     {does(over(float, lease, false), turn(float, lease, false, false)), "redispy-float", "redis-objects", lease - second, lease},
		"redis-objects":              {does(over(float, lease+second, true), turn(float, lease+second, false, false)), "redis-objects", "", lease, lease},
		"retools 0.3":                {does(turn(float, lease+second, false, true)), "redis-objects", "", lease, lease},
		"a copy of it, no second":    {does(turn(float, lease, false, true)), "redis-objects", "redispy-float", lease - second, lease},
		"QueueLock, never overdue":   {does(turn((*tape).sec, lease, false, true)), "blind-set", "redis-doc", 0, 0},
		"nanoseconds that none read": {does(nanoseconds(lease)), "unix-ns", "set-nx-px", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tp := newTape(Options{})
			for n := range 40 {
				for i := range 3 {
					for _, do := range c.does {
						key := fmt.Sprint("lock:order:", i)
						if c.dialect == "blind-set" {
							key = fmt.Sprintf("resque:lock:Job:queue:[%d]", i)
						}
						do(tp, fmt.Sprintf("10.0.0.%d:1", i+1), key)
						tp.wait(time.Duration(97+7*n) * time.Millisecond)
					}
				}
			}
			r := tp.report()
			p := tp.o.Profile()
			for i := range 3 {
				row := rowOf(t, r, fmt.Sprintf("10.0.0.%d:1", i+1))
				assert.Equal(t, c.dialect, row.Dialect)
				assert.Equal(t, c.or, row.DialectOr, row.DialectDoubt)
				assert.Equal(t, c.or == "", row.DialectDoubt == "")
			}
			for _, one := range p.Clients {
				if one.Name == "9.9.9.9:1" {
					continue
				}
				assert.Equal(t, []string{c.dialect, c.or}, []string{one.Dialect, one.Or})
				if c.most > 0 {
					least, most := one.Uses[0].Between()
					assert.InDelta(t, ms(c.least), least, 20)
					assert.InDelta(t, ms(c.most), most, 20)
				}
			}
			if c.or != "" && c.dialect != "unix-ns" {
				_, err := p.OldClients()
				require.Error(t, err)
				assert.Regexp(t, "the dialect of .*: ("+c.dialect+" or "+c.or+"|"+c.or+" or "+c.dialect+")", err.Error())
			}
		})
	}
}

func does(all ...func(tp *tape, addr, key string)) []func(tp *tape, addr, key string) { return all }

func nanoseconds(lease time.Duration) func(tp *tape, addr, key string) {
	return func(tp *tape, addr, key string) {
		tp.run(addr, "SET", key, fmt.Sprint(int64(tp.at.Add(lease))), "NX", "PX", fmt.Sprint(lease.Milliseconds()))
		tp.run(addr, "DEL", key)
	}
}
