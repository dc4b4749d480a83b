package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/session"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// client reads: NAME SCHEME [option=value ...]. With count=N the name gets a number for each: b-* is
// b-1, b-2 ...
func (s *Scenario) client(n int, words []string) error {
	if len(words) < 2 {
		return fail(n, "write: client NAME legacy|go-legacy|bridge|modern|sidecar [option=value ...]")
	}
	scheme, ok := session.SchemeNamed(words[1])
	if !ok {
		return unknown(n, words[1], session.SchemeNames(), "no scheme is named %q", words[1])
	}
	c := sim.Client{
		Member: session.Member{
			Scheme: scheme, Dialect: protocol.JedisMS, Key: "orders",
			Lease: 10 * time.Second, Poll: 100 * time.Millisecond, Patience: time.Hour,
		},
		Hold: sim.Fixed(time.Second),
	}
	c.Member.Release = c.Dialect.Release
	if scheme == session.GoLegacy {
		c.Member.Release = protocol.ReleaseCompare
	}
	count, groups := 1, 1
	of := clientOptions(n, &c)
	of["count"], of["groups"] = into(n, &count, whole), into(n, &groups, whole)
	err := options(n, words[2:], "a client", of)
	if err != nil {
		return err
	}
	if c.Tracks && scheme.Old() {
		return fail(n, "a client of scheme %s tracks no keys: leave out tracks", scheme)
	}
	if count < 1 || groups < 1 || groups > count || len(s.Fleet.Clients)+count > mostClients {
		return fail(n, "a fleet has 1 to %d clients, and no more groups than clients", mostClients)
	}
	for i := range count {
		one := c
		one.Name = strings.ReplaceAll(words[0], "*", strconv.Itoa(i+1))
		if _, err := s.who(n, one.Name); err == nil {
			return fail(n, "two clients are named %q; with count=N write a * into the name", one.Name)
		}
		if scheme == session.Sidecar {
			one.Behind = one.Name
		}
		one.Owner = ownerOf(len(s.Fleet.Clients))
		one.Keys = slices.Clone(c.Keys)
		for k := range one.Keys {
			one.Keys[k].Prefix = strings.ReplaceAll(one.Keys[k].Prefix, "%", strconv.Itoa(i*groups/count+1))
		}
		s.names[one.Name] = len(s.Fleet.Clients)
		s.Fleet.Clients = append(s.Fleet.Clients, one)
	}
	return nil
}

// clientOptions are the options of a client that stand for one client of its line.
func clientOptions(n int, c *sim.Client) table {
	flag := func(to *bool) func(string) error {
		return func(value string) error {
			if *to = value == ""; !*to {
				return fail(n, "the word alone turns it on: leave out =%s", value)
			}
			return nil
		}
	}
	return table{
		"lease": into(n, &c.Lease, span), "ttl": into(n, &c.Lease, span), "poll": into(n, &c.Poll, span), "patience": into(n, &c.Patience, span),
		"renew": into(n, &c.Renew, span), "grace": into(n, &c.Grace, span), "settle": into(n, &c.Settle, span), "ahead": into(n, &c.Offset, span),
		"claim": into(n, &c.Claim, span), "max-sleep": into(n, &c.MaxSleep, span), "share": into(n, &c.Share, span), "yield": into(n, &c.Yield, span),

		"hold": into(n, &c.Hold, distribution), "think": into(n, &c.Think, distribution), "first": into(n, &c.First, distribution),
		"overrun-by": into(n, &c.OverBy, distribution), "pause-every": into(n, &c.Chaos.PauseEvery, distribution), "pause": into(n, &c.Chaos.Pause, distribution),
		"crash-every": into(n, &c.Chaos.CrashEvery, distribution), "restart": into(n, &c.Chaos.Restart, distribution),
		"step-every": into(n, &c.Chaos.StepEvery, distribution), "step": into(n, &c.Chaos.Step, distribution),

		"no-guard": flag(&c.NoGuard), "truthful": flag(&c.Truthful), "no-deadline": flag(&c.NoDeadline), "from-reply": flag(&c.FromReply),
		"plain": flag(&c.Plain), "queue": flag(&c.Queue), "tracks": flag(&c.Tracks),

		"drift": into(n, &c.DriftPPM, ppm), "overrun": into(n, &c.Overrun, chance), "turns": into(n, &c.Turns, whole), "put-backs": into(n, &c.PutBacks, whole),
		"release": into(n, &c.Member.Release, release),
		"dialect": func(value string) (err error) {
			if c.Dialect, err = dialect(n, value); err == nil && (c.Scheme == session.Legacy || c.Scheme == session.Sidecar) {
				c.Member.Release = c.Dialect.Release
			}
			return err
		},
		"key": func(value string) error {
			c.Key = value
			return nil
		},
		"keys": func(value string) error {
			set, err := keySet(n, value)
			c.Keys = append(c.Keys, set)
			return err
		},
		"fence": func(string) error {
			c.Member.Fence = protocol.FenceKey(c.Key)
			return nil
		},
	}
}

// keySet reads PREFIX*COUNT, or PREFIX*COUNT@WEIGHT.
func keySet(n int, value string) (set sim.KeySet, err error) {
	at := strings.LastIndexByte(value, '*')
	if at < 0 {
		return set, fail(n, "write keys=PREFIX*COUNT, such as keys=order:*500")
	}
	set.Prefix = value[:at]
	count, weight, weighted := strings.Cut(value[at+1:], "@")
	if set.Count, err = strconv.Atoi(count); err != nil || set.Count < 1 || set.Count > mostKeys {
		return set, fail(n, "%q is no number of keys from 1 to %d", count, mostKeys)
	}
	if weighted {
		w, err := strconv.ParseUint(weight, 10, 20)
		if err != nil || w < 1 {
			return set, fail(n, "%q is no weight from 1 to 1048575", weight)
		}
		set.Weight = uint32(w)
	}
	return set, nil
}

var releaseNames = [...]string{"blind", "unexpired", "not-smaller", "mine", "never", "compare"}

func release(n int, name string) (protocol.Release, error) {
	i := slices.Index(releaseNames[:], name)
	if i < 0 {
		return 0, unknown(n, name, releaseNames[:], "no release is named %q", name)
	}
	return protocol.Release(i), nil
}

func dialect(n int, name string) (*protocol.Dialect, error) {
	d, err := protocol.DialectNamed(name)
	switch {
	case err == nil:
		return d, nil
	case protocol.Refused(name) != "":
		return nil, fail(n, "%v", err)
	}
	var names []string
	for _, one := range protocol.Dialects() {
		names = append(names, one.Name)
	}
	return nil, unknown(n, name, names, "no dialect is named %q", name)
}

// ownerOf is a UUID, for the dialects that write one.
func ownerOf(i int) string { return fmt.Sprintf("%08x-0000-4000-8000-000000000000", i+1) }

// table has for each option what reads its value.
type table map[string]func(value string) error

// into reads a value of line n into a place.
func into[T any](n int, to *T, read func(n int, value string) (T, error)) func(string) error {
	return func(value string) (err error) {
		*to, err = read(n, value)
		return err
	}
}

// options reads name=value words, and bare names. The bare words that may stand there too are for the error.
func options(n int, words []string, of string, t table, bare ...string) error {
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		read := t[name]
		if read == nil {
			return unknown(n, name, append(slices.Sorted(maps.Keys(t)), bare...), "%s has no %q", of, name)
		}
		if err := read(value); err != nil {
			return err
		}
	}
	return nil
}

func whole(n int, s string) (int, error) {
	x, err := strconv.Atoi(s)
	if err != nil {
		return 0, fail(n, "%q is no whole number", s)
	}
	return x, nil
}

func number(n int, words []string) (uint64, error) {
	if len(words) != 1 {
		return 0, fail(n, "one number is needed")
	}
	x, err := strconv.ParseUint(words[0], 10, 64)
	if err != nil {
		return 0, fail(n, "%q is no number", words[0])
	}
	return x, nil
}

func duration(n int, words []string, at int) (time.Duration, error) {
	if len(words) != at+1 {
		return 0, fail(n, "one duration is needed")
	}
	return span(n, words[at])
}

func span(n int, s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fail(n, "%q is no duration such as 1.5s", s)
	}
	return d, nil
}

// distribution reads 1s, 1s..2s or 1ms/2ms/5ms/20ms.
func distribution(n int, s string) (sim.Distribution, error) {
	if lo, hi, ok := strings.Cut(s, ".."); ok {
		low, err := span(n, lo)
		if err != nil {
			return nil, err
		}
		high, err := span(n, hi)
		if err == nil && high < low {
			err = fail(n, "%s ends before it begins", s)
		}
		return sim.Uniform(low, high), err
	}
	parts := strings.Split(s, "/")
	if strings.Contains(s, "%:") {
		return quantiles(n, parts)
	}
	var values []time.Duration
	for _, p := range parts {
		d, err := span(n, p)
		if err != nil {
			return nil, err
		}
		if len(values) > 0 && d < values[len(values)-1] {
			return nil, fail(n, "%s must not fall", s)
		}
		values = append(values, d)
	}
	switch len(values) {
	case 1:
		return sim.Fixed(values[0]), nil
	case 4:
		return sim.Spread(values[0], values[1], values[2], values[3]), nil
	}
	return nil, fail(n, "write 1s, 1s..2s, least/median/p99/greatest, or 10%%:1s/50%%:2s/100%%:9s")
}

// quantiles reads 10%:1s, 50%:2s, 100%:9s: so many of the values lie at or below that.
func quantiles(n int, parts []string) (d sim.Distribution, err error) {
	for _, part := range parts {
		share, value, _ := strings.Cut(part, "%:")
		percent, err := strconv.ParseFloat(share, 64)
		if err != nil || !(percent >= 0 && percent <= 100) {
			return nil, fail(n, "%q is no part of a distribution such as 50%%:2s", part)
		}
		q := sim.Quantile{Permyriad: uint32(percent*100 + 0.5)}
		if q.Value, err = span(n, value); err != nil {
			return nil, err
		}
		if len(d) > 0 && (q.Permyriad < d[len(d)-1].Permyriad || q.Value < d[len(d)-1].Value) {
			return nil, fail(n, "%s must not fall", strings.Join(parts, "/"))
		}
		d = append(d, q)
	}
	return d, nil
}

// chance reads 0.1% or a number from 0 to 1.
func chance(n int, s string) (sim.PPM, error) {
	scale := 1e6
	if rest, ok := strings.CutSuffix(s, "%"); ok {
		s, scale = rest, 1e4
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f < 0 || f*scale > 1e6 {
		return 0, fail(n, "%q is no chance such as 0.1%%", s)
	}
	return sim.PPM(f*scale + 0.5), nil
}

// ppm reads 200ppm.
func ppm(n int, s string) (int64, error) {
	x, err := strconv.ParseInt(strings.TrimSuffix(s, "ppm"), 10, 64)
	if err != nil || x > 100000 || x < -100000 {
		return 0, fail(n, "%q is no drift such as 200ppm", s)
	}
	return x, nil
}
