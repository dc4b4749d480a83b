// This file tries random combinations of options, with values at the edges, on the Lockers of all packages: each is
// refused with a reason, or it works.

package kinds

import (
	"context"
	"flag"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
)

var (
	seed  = flag.Uint64("seed", 0, "of the combinations; 0: a new one")
	tries = flag.Int("tries", 400, "combinations for each kind of Locker")
)

// edges are the values of durations. Most combinations would be refused if they were all equally likely.
var edges = []time.Duration{
	-1, 1, time.Microsecond, time.Millisecond, 1500 * time.Microsecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second,
	3 * time.Second, 10 * time.Second, time.Minute, time.Hour, 365 * 24 * time.Hour, 10 * 365 * 24 * time.Hour,
	10*365*24*time.Hour + 1, 200 * 365 * 24 * time.Hour, math.MaxInt64, math.MinInt64,
}

// fill sets some of the fields of a struct of options.
func fill(options reflect.Value, r *rand.Rand) {
	for i := range options.NumField() {
		field := options.Field(i)
		if !field.CanSet() || r.IntN(5) != 0 {
			continue
		}
		switch v := field.Addr().Interface().(type) {
		case *time.Duration:
			*v = edges[r.IntN(len(edges))]
		case *bool:
			*v = true
		case *int:
			*v = []int{-1, 1, 5, math.MaxInt}[r.IntN(4)]
		default:
			if field.Kind() == reflect.Uint8 { // a choice
				field.SetUint(uint64(r.IntN(4)))
			}
		}
	}
}

type acquires = func(lockmigrate.Locker, context.Context, string) (lockmigrate.Lock, error)

// works checks that a Locker of options that New accepts locks.
func works(t *testing.T, o any, l lockmigrate.Locker, acquire acquires) {
	t.Helper()
	_, err := acquire(l, t.Context(), "")
	require.ErrorContains(t, err, "the key is empty", "%+v", o)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	k, err := acquire(l, ctx, "orders")
	if err != nil { // a lease, or a timeout, of some milliseconds on a busy machine
		require.NoError(t, ctx.Err(), "%+v: it hangs: %v", o, err)
		require.True(t, short(o), "%+v: %v", o, err)
		return
	}
	if left := time.Until(k.Expiry()); left <= 0 || left > 11*365*24*time.Hour {
		require.True(t, left <= 0 && short(o), "%+v: expires in %v", o, left)
	}
	if lost := context.Cause(k.Context()); lost != nil {
		require.True(t, short(o), "%+v: lost at once: %v", o, lost)
	}
	if err := k.Release(ctx); err != nil {
		require.True(t, short(o), "%+v: release: %v", o, err)
		require.NoError(t, ctx.Err(), "%+v: release: it hangs: %v", o, err)
	}
}

// short tells that one of the durations is so short that a busy machine may be too slow for it, or that WAIT is asked for, which
// nobody answers here.
func short(o any) bool {
	v := reflect.ValueOf(o)
	for i := range v.NumField() {
		if f := v.Type().Field(i); !f.IsExported() {
			continue
		}
		if d, ok := v.Field(i).Interface().(time.Duration); ok && d > 0 && d <= time.Second {
			return true
		}
	}
	replicas := v.FieldByName("Replicas")
	return replicas.IsValid() && replicas.Int() > 0
}

func TestEveryCombinationIsRefusedOrWorks(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-seed %d", *seed)
	for name, k := range shapes {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(*seed, 0))
			accepted := 0
			for n := range *tries {
				var was bool
				require.True(t, t.Run("", func(t *testing.T) { was = k.try(t, r) }), "combination %d of -seed %d", n, *seed)
				if was {
					accepted++
				}
			}
			t.Logf("%d of %d accepted", accepted, *tries)
			require.Greater(t, accepted, *tries/20, "the combinations say nothing")
		})
	}
}
