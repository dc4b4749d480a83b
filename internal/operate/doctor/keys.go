package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// sample is what a bounded look at the keys found.
type sample struct {
	looked  int64
	whole   bool
	mixed   []string // families with dialects that misread each other
	ghosts  int
	ghost   string
	noTTL   int
	token   string
	maybe   int // texts without TTL that may be tokens: their keys' names do not say that they are locks
	blind   string
	byName  map[string][]string // dialects by family
	said    map[string]bool     // which dialects write what was found: those that write the same together
	failure error
}

// mostKeys is about how many keys are looked at.
const mostKeys = 100_000

// takeSample looks at the keys through a census, for as many keys as the options allow.
func takeSample(ctx context.Context, p *patient) *sample {
	s := &sample{byName: map[string][]string{}, said: map[string]bool{}}
	conn, err := p.end.DialRaw(ctx, p.addr)
	if err != nil {
		s.failure = err
		return s
	}
	limited, enough := context.WithCancel(ctx)
	defer enough()
	opts := census.Options{Confidence: census.Low, GhostAfter: time.Hour, Emit: func(r *census.Row) error {
		s.take(r)
		return nil
	}}
	if p.opts.Match != "" {
		opts.Match = []string{p.opts.Match}
	}
	opts.Progress = func(pr census.Progress) {
		if pr.Scanned >= mostKeys {
			enough()
		}
	}
	taken := census.New(opts)
	err = taken.Scan(limited, conn)
	s.looked, s.whole = taken.Summary().Scanned, err == nil
	if err != nil && limited.Err() == nil {
		s.failure = err
	} else if n := taken.Summary().Unread; n > 0 {
		s.failure = fmt.Errorf("this user has no right to %d of %d", n, s.looked)
	}
	return s
}

func (s *sample) take(r *census.Row) {
	if r.Confidence < census.Medium {
		if r.Format == census.TokenNoTTL {
			s.maybe++
		}
		return
	}
	if r.State == census.Ghost && r.HasExpiry {
		s.ghosts++
		s.ghost = string(r.Key)
	}
	if r.Format == census.TokenNoTTL || r.State == census.Ghost && !r.HasExpiry { // nothing will end it
		s.noTTL++
		s.token = string(r.Key)
	}
	if len(r.Dialects) == 0 {
		return
	}
	if r.Format == census.BlindSet {
		s.blind = string(r.Key)
	}
	s.said[strings.Join(r.Dialects, " or ")] = true
	family := observe.Family(string(r.Key))
	seen := s.byName[family]
	for _, other := range seen {
		if !slices.Contains(r.Dialects, other) && !observe.Compatible(other, r.Dialects[0]) && len(s.mixed) < 5 {
			s.mixed = append(s.mixed, fmt.Sprintf("%q (%s and %s)", family, other, r.Dialects[0]))
		}
	}
	if !slices.Contains(seen, r.Dialects[0]) && len(s.byName) < 100_000 {
		s.byName[family] = append(seen, r.Dialects[0])
	}
}

// of says what the sample covers.
func (s *sample) of() string {
	if s.whole {
		return fmt.Sprintf("among all %d keys", s.looked)
	}
	return fmt.Sprintf("among the first %d keys", s.looked)
}

// ofKeys is a check of what the sample found.
func ofKeys(ask func(s *sample) (Verdict, string, string)) func(context.Context, *patient) (Verdict, string, string) {
	return func(_ context.Context, p *patient) (Verdict, string, string) {
		if p.keys.failure != nil {
			return skip("the keys could not be read: " + p.keys.failure.Error())
		}
		return ask(p.keys)
	}
}

func (s *sample) dialects() (Verdict, string, string) {
	switch {
	case s.blind != "":
		return Fail, fmt.Sprintf("%s %q, by its name and value a key of %s clients", s.of(), s.blind, protocol.BlindSet), protocol.Refused(protocol.BlindSet)
	case len(s.mixed) > 0:
		return Fail, s.of() + ": " + strings.Join(s.mixed, ", "), "these fleets do not exclude each other today; lockmigrate observe names who writes what"
	case len(s.said) == 0:
		return Pass, s.of() + " no legacy value", ""
	}
	return Pass, s.of() + ": " + strings.Join(slices.Sorted(maps.Keys(s.said)), ", ") + ", never two on one kind of key", ""
}

func (s *sample) ghostKeys() (Verdict, string, string) {
	if s.ghosts > 0 {
		return Warn, fmt.Sprintf("%s %d expired for more than an hour, such as %q", s.of(), s.ghosts, s.ghost), "lockmigrate sweep removes them by compare-and-set"
	}
	return Pass, s.of() + " none", ""
}

func (s *sample) tokensWithoutTTL() (Verdict, string, string) {
	switch {
	case s.noTTL > 0:
		return Warn, fmt.Sprintf("%s %d, such as %q", s.of(), s.noTTL, s.token), "lockmigrate sweep --tokens gives them a TTL"
	case s.maybe > 0:
		return Warn, fmt.Sprintf("%s none whose key is named like a lock; %d random texts without TTL may be tokens", s.of(), s.maybe), "lockmigrate scan --all lists them; choose the locks among them with --match"
	}
	return Pass, s.of() + " none", ""
}

func databases(ctx context.Context, p *patient) (Verdict, string, string) {
	if p.infoErr != nil {
		return p.noInfo()
	}
	var used []string
	for name := range p.info {
		if strings.HasPrefix(name, "db") && strings.Contains(p.info[name], "keys=") {
			used = append(used, name)
		}
	}
	size, err := redis.Int64(p.do(ctx, "DBSIZE"))
	if err != nil {
		return skip("DBSIZE is refused")
	}
	if len(used) > 1 {
		return Warn, "in use: " + strings.Join(slices.Sorted(slices.Values(used)), " "), "SETNX in another database counts as legacy traffic too; verify counts a legacy client of any of them"
	}
	return Pass, fmt.Sprintf("one (keys: %d)", size), ""
}
