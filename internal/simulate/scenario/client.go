package scenario

import (
	"fmt"
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
		return fail(n, "no scheme is named %q; known are legacy, go-legacy, bridge, modern, sidecar", words[1])
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
	err := options(n, words[2:], func(name, value string) (err error) {
		switch name {
		case "count":
			count, err = strconv.Atoi(value)
			return err
		case "groups":
			groups, err = strconv.Atoi(value)
			return err
		}
		return clientOption(n, &c, name, value)
	})
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

func clientOption(n int, c *sim.Client, name, value string) (err error) {
	durations := map[string]*time.Duration{
		"lease": &c.Lease, "ttl": &c.Lease, "poll": &c.Poll, "patience": &c.Patience, "renew": &c.Renew,
		"grace": &c.Grace, "settle": &c.Settle, "ahead": &c.Offset,
		"claim": &c.Claim, "max-sleep": &c.MaxSleep, "share": &c.Share, "yield": &c.Yield,
	}
	distributions := map[string]*sim.Distribution{
		"hold": &c.Hold, "think": &c.Think, "first": &c.First, "overrun-by": &c.OverBy,
		"pause-every": &c.Chaos.PauseEvery, "pause": &c.Chaos.Pause, "crash-every": &c.Chaos.CrashEvery,
		"restart": &c.Chaos.Restart, "step-every": &c.Chaos.StepEvery, "step": &c.Chaos.Step,
	}
	flags := map[string]*bool{
		"no-guard": &c.NoGuard, "truthful": &c.Truthful, "no-deadline": &c.NoDeadline, "from-reply": &c.FromReply,
		"plain": &c.Plain, "queue": &c.Queue, "tracks": &c.Tracks,
	}
	if d := durations[name]; d != nil {
		*d, err = span(n, value)
		return err
	}
	if d := distributions[name]; d != nil {
		*d, err = distribution(n, value)
		return err
	}
	if f := flags[name]; f != nil {
		*f = true
		return nil
	}
	switch name {
	case "dialect":
		if c.Dialect, err = protocol.DialectNamed(value); err != nil {
			return fail(n, "%v", err)
		}
		if c.Scheme == session.Legacy || c.Scheme == session.Sidecar {
			c.Member.Release = c.Dialect.Release
		}
	case "release":
		r, ok := releaseNamed(value)
		if !ok {
			return fail(n, "no release is named %q; known are %s", value, strings.Join(releaseNames[:], ", "))
		}
		c.Member.Release = r
	case "drift":
		c.DriftPPM, err = ppm(n, value)
	case "overrun":
		c.Overrun, err = chance(n, value)
	case "turns":
		c.Turns, err = strconv.Atoi(value)
	case "put-backs":
		c.PutBacks, err = strconv.Atoi(value)
	case "key":
		c.Key = value
	case "keys":
		set, err := keySet(n, value)
		if err != nil {
			return err
		}
		c.Keys = append(c.Keys, set)
	case "fence":
		c.Member.Fence = protocol.FenceKey(c.Key)
	default:
		return fail(n, "a client has no %q", name)
	}
	if err != nil {
		return fail(n, "%s=%s: %v", name, value, err)
	}
	return nil
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

func releaseNamed(name string) (protocol.Release, bool) {
	for i, n := range releaseNames {
		if n == name {
			return protocol.Release(i), true
		}
	}
	return 0, false
}

// ownerOf is a UUID, for the dialects that write one.
func ownerOf(i int) string { return fmt.Sprintf("%08x-0000-4000-8000-000000000000", i+1) }

// options reads name=value words, and bare names.
func options(n int, words []string, set func(name, value string) error) error {
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		if err := set(name, value); err != nil {
			if _, ok := err.(*Error); !ok {
				err = fail(n, "%s: %v", word, err)
			}
			return err
		}
	}
	return nil
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
	return nil, fail(n, "write 1s, 1s..2s, or least/median/p99/greatest")
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
