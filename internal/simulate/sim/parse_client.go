package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// client reads: NAME SCHEME [option=value ...]. With count=N the name gets a number for each: b-* is
// b-1, b-2 ...
func (s *Scenario) client(n int, words []string) error {
	if len(words) < 2 {
		return fail(n, "write: client NAME legacy|go-legacy|bridge|modern|sidecar [option=value ...]")
	}
	scheme, ok := model.SchemeNamed(words[1])
	if !ok {
		return unknown(n, words[1], model.SchemeNames(), "no scheme is named %q", words[1])
	}
	c := Client{
		Member: model.Member{
			Scheme: scheme, Dialect: protocol.JedisMS, Key: "orders",
			Lease: 10 * time.Second, Poll: 100 * time.Millisecond, Patience: time.Hour,
		},
		Hold: Fixed(time.Second),
	}
	release := func() { c.Member.Release = usualRelease(&c) }
	count, groups := 1, 1
	fields := slices.Concat(lasting(&c), habits(&c), []field{{"count", &count}, {"groups", &groups},
		{"lease", &c.Lease}, {"ttl", &c.Lease}, {"poll", &c.Poll}, {"patience", &c.Patience}, {"key", &c.Key},
		{"dialect", func(name string) (err error) {
			c.Dialect, err = dialect(n, name)
			return err
		}},
		{"release", func(name string) error {
			i := slices.Index(protocol.Releases, name)
			if i < 0 {
				return unknown(n, name, protocol.Releases, "no release is named %q", name)
			}
			release = func() { c.Member.Release = protocol.Release(i) }
			return nil
		}},
		{"keys", func(value string) error {
			set, err := keySet(n, value)
			c.Keys = append(c.Keys, set)
			return err
		}},
		{"fence", func(string) error {
			c.Member.Fence = protocol.FenceKey(c.Key)
			return nil
		}}})
	if err := options(n, words[2:], "a client", fields); err != nil {
		return err
	}
	release()
	if c.Tracks && scheme.Old() {
		return fail(n, "a client of scheme %s tracks no keys: leave out tracks", scheme)
	}
	if count < 1 || groups < 1 || groups > count || len(s.Fleet.Clients)+count > mostClients {
		return fail(n, "a fleet has 1 to %d clients, and no more groups than clients", mostClients)
	}
	for i := range count {
		one := c
		one.Name = strings.ReplaceAll(words[0], "*", strconv.Itoa(i+1))
		if _, taken := s.names[one.Name]; taken {
			return fail(n, "two clients are named %q; with count=N write a * into the name", one.Name)
		}
		if scheme == model.Sidecar {
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

// lasting are the options that are part of a client, and empty unless they are given.
func lasting(c *Client) []field {
	return []field{
		{"ahead", &c.Offset}, {"renew", &c.Renew}, {"grace", &c.Grace}, {"settle", &c.Settle},
		{"claim", &c.Claim}, {"max-sleep", &c.MaxSleep}, {"share", &c.Share}, {"yield", &c.Yield},
		{"drift", &c.DriftPPM}, {"queue-ttl", &c.QueueTTL}, {"put-backs", &c.PutBacks},
		{"no-guard", &c.NoGuard}, {"truthful", &c.Truthful}, {"no-deadline", &c.NoDeadline}, {"from-reply", &c.FromReply},
		{"plain", &c.Plain}, {"redisson", &c.Redisson}, {"alone", &c.Alone}, {"queue", &c.Queue}, {"tracks", &c.Tracks},
	}
}

// habits are the options of a client that draws when it does what. With turns that are written down they mean nothing.
func habits(c *Client) []field {
	return []field{
		{"hold", &c.Hold}, {"think", &c.Think}, {"first", &c.First}, {"overrun-by", &c.OverBy},
		{"pause-every", &c.Chaos.PauseEvery}, {"pause", &c.Chaos.Pause}, {"crash-every", &c.Chaos.CrashEvery},
		{"restart", &c.Chaos.Restart}, {"step-every", &c.Chaos.StepEvery}, {"step", &c.Chaos.Step},
		{"overrun", &c.Overrun}, {"dies", &c.Dies}, {"turns", &c.Turns},
	}
}

// keySet reads PREFIX*COUNT, or PREFIX*COUNT@WEIGHT.
func keySet(n int, value string) (set KeySet, err error) {
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
