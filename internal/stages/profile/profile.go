// Package profile is the file in which observe writes down a fleet as it was measured. simulate and forecast build the
// same fleet from it, and stage init takes the parameters of a namespace from it.
package profile

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Version is the format's.
const Version = 4

// Profile is a fleet as it was measured. Counts stand beside every quantile and rate: they say how sure a figure is.
type Profile struct {
	Version int      `json:"version"`
	Window  Window   `json:"window"`             // when somebody looked
	Match   []string `json:"match,omitempty"`    // the key patterns that observe was given; none: every key
	NotSeen []string `json:"not_seen,omitempty"` // why some of the traffic is missing
	// Failovers are nil where no master said anything of them.
	Failovers *Failovers `json:"failovers,omitempty"`
	Clients   []Client   `json:"clients"`
	// Families are the kinds of keys, by name.
	Families []Family `json:"families"`
}

// Window is the time that somebody looked, by the server's clock.
type Window struct {
	Start        time.Time `json:"start"`
	Seconds      float64   `json:"seconds"`
	Masters      int       `json:"masters"`       // that were watched
	Commands     int64     `json:"commands"`      // that they ran
	LockCommands int64     `json:"lock_commands"` // those on locks
}

// Client is one row of observe: a connection, a host, or a CLIENT SETNAME.
type Client struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"` // legacy, member (at stage legacy), bridge, modern, redisson, unknown
	Dialect string `json:"dialect,omitempty"`
	Or      string `json:"dialect_or,omitempty"`    // what it may speak as well; empty where there is no doubt
	Doubt   string `json:"dialect_doubt,omitempty"` // why
	// Connections is how many connections the row puts together, AtOnce how many of them worked at the same time: a process that
	// starts again, or connects for each lock, has many connections and is one.
	Connections int     `json:"connections"`
	AtOnce      int     `json:"at_once"`
	SkewMS      float64 `json:"skew_ms"`       // its clock less the server's, as it was last
	SkewErrorMS float64 `json:"skew_error_ms"` // 0 with SkewKnown unset
	SkewKnown   bool    `json:"skew_known"`
	// Clock is its clock over time, the earliest reading first; Drift reads it. A clock that was stepped begins again.
	Clock []Reading `json:"clock,omitempty"`
	// Poll is the time between two looks at a key that another holds. A sleep is often longer than asked for; PollMS is what
	// it asks for, 0 where it never had to wait.
	PollMS float64 `json:"poll_ms,omitempty"`
	Poll   Spread  `json:"poll"`
	// Pause is the time from its GET of an expired value to the GETSET, or SET, of its takeover.
	Pause Spread `json:"takeover_pause"`
	Uses  []Use  `json:"uses"` // one for each family of keys, the most used first
}

// Reading is a clock at an instant.
type Reading struct {
	At      time.Time `json:"at"`
	SkewMS  float64   `json:"skew_ms"`
	ErrorMS float64   `json:"error_ms"` // of this reading beside the others of the same client
}

// Use is what one client does on one family of keys.
type Use struct {
	Family string `json:"family"`
	Lease
	Tries    int64 `json:"tries"`
	Acquired int64 `json:"acquired"`
	// Hold is from the acquisition to the holder's release, or its late try to release; a crash is not in it.
	Hold Spread `json:"hold"`
	// Wait is from the first try to the acquisition.
	Wait Spread `json:"wait"`
	// Think is from the end of one turn to the first try of the next.
	Think Spread `json:"think"`
	// Crashed are the leases that ended without a release, and after which nothing came from the holder for one more lease.
	Crashed int64 `json:"crashed"`
	// Left are the turns that ended without a release, while the client went on: it tried again. In some dialects a
	// holder sends nothing after its lease is over: its overruns end so.
	Left int64 `json:"left"`
	// Own are keys that no other client was seen on.
	Own Own `json:"own"`
}

// Lease is what is known of the lease of a client's locks.
type Lease struct {
	// LeaseMS is the largest lease where it varies, else the likely one; 0: not known. The skew is with this one.
	LeaseMS float64 `json:"lease_ms,omitempty"`
	// LeaseFrom says where the lease is known from: given, ttl (that a command sets with the value, or after it), written (what the value
	// says, less the clock).
	LeaseFrom string `json:"lease_from,omitempty"`
	// With LeaseVaries its locks have leases from LeaseLeastMS to LeaseMostMS. Else they have one that lies between these: with a longer one
	// the clock is so much further behind.
	LeaseLeastMS float64 `json:"lease_least_ms,omitempty"`
	LeaseMostMS  float64 `json:"lease_most_ms,omitempty"`
	LeaseVaries  bool    `json:"lease_varies,omitempty"`
	LeaseDoubt   string  `json:"lease_doubt,omitempty"` // why it may be another one; empty where it is known
}

// Own are the keys of a family that one client alone was seen on. A key that was acquired once tells nothing about who else
// may come: such keys are counted apart.
type Own struct {
	Keys     int64 `json:"keys"`     // that it acquired at least twice
	Acquired int64 `json:"acquired"` // on these
	Once     int64 `json:"once"`     // keys that it acquired once, or only tried for
}

// Family is one kind of keys. Numbers and ids in the names are #.
type Family struct {
	Name string `json:"name"`
	Keys int64  `json:"keys"` // different ones that were seen
	// Beyond is how many tries were on keys beyond the most that observe remembers: who shares them is not known.
	Beyond int64 `json:"beyond,omitempty"`
	// Groups are the keys that more than one client was seen on, the most used first.
	Groups []Group `json:"groups,omitempty"`
	// Overlaps are the times that two held one key, by cause.
	Overlaps map[string]int64 `json:"overlaps,omitempty"`
}

// Group is keys of one family that the same clients were seen on, about equally often.
type Group struct {
	Clients  []int   `json:"clients"`  // indexes into Profile.Clients, rising
	Keys     int64   `json:"keys"`     // how many
	Acquired []int64 `json:"acquired"` // by each of Clients, on these keys together
	// Sharers is 0 where each of Clients was seen on each of the keys. Else these are keys of different clients, put together
	// to keep the profile small, and each key is used by so many of Clients on the average.
	Sharers float64 `json:"sharers,omitempty"`
}

// Write writes a profile as JSON. It writes nothing that Read would refuse.
func (p Profile) Write(w io.Writer) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if p.Clients == nil {
		p.Clients = []Client{}
	}
	if p.Families == nil {
		p.Families = []Family{}
	}
	return json.NewEncoder(w).Encode(p)
}

// Read reads a profile and checks it.
func Read(r io.Reader) (Profile, error) {
	var p Profile
	in := json.NewDecoder(r)
	if err := in.Decode(&p); err != nil {
		return p, fmt.Errorf("profile: %w", err)
	}
	return p, p.Validate()
}

// Validate says what is wrong with a profile.
func (p Profile) Validate() error {
	if p.Version != Version {
		return fmt.Errorf("profile: version %d, this program reads version %d; observe again", p.Version, Version)
	}
	err := sound("profile", reflect.ValueOf(p))
	switch {
	case err != nil:
		return err
	case p.Window.Seconds > 1e9:
		return fmt.Errorf("profile: window: %v s are too many", p.Window.Seconds)
	case p.Failovers != nil && (p.Failovers.Seconds > 1e10 || p.Failovers.Seen > 0 && p.Failovers.Seconds == 0):
		return fmt.Errorf("profile: failovers: %d in %v s", p.Failovers.Seen, p.Failovers.Seconds)
	}
	for i, c := range p.Clients {
		if c.Connections < 1 || c.AtOnce < 1 || c.AtOnce > c.Connections {
			return fmt.Errorf("profile: clients[%d] (%q): connections %d, at_once %d: at least one, and no more at once than there are", i, c.Name, c.Connections, c.AtOnce)
		}
		if !slices.IsSortedFunc(c.Clock, func(a, b Reading) int { return a.At.Compare(b.At) }) {
			return fmt.Errorf("profile: clients[%d] (%q): the readings of its clock are not in order", i, c.Name)
		}
	}
	for _, f := range p.Families {
		for i, g := range f.Groups {
			if len(g.Clients) < 2 || len(g.Acquired) != len(g.Clients) || g.Keys < 1 || g.Sharers > float64(len(g.Clients)) {
				return fmt.Errorf("profile: family %q, group %d: it wants two clients or more, a count for each, and a key", f.Name, i)
			}
			for j, c := range g.Clients {
				if c >= len(p.Clients) || j > 0 && c <= g.Clients[j-1] {
					return fmt.Errorf("profile: family %q, group %d: client %d is none, or out of order", f.Name, i, c)
				}
			}
		}
	}
	return nil
}

// skews may be negative: clocks are behind. No other number of a profile is.
const skews = "skew_ms"

// sound refuses numbers that are none, or negative, wherever they stand in a value of that name, and spreads that do not rise.
func sound(name string, v reflect.Value) error {
	wrong := false
	switch v.Kind() {
	case reflect.Float64:
		wrong = math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) || v.Float() < 0 && name != skews
	case reflect.Int, reflect.Int64:
		wrong = v.Int() < 0
	case reflect.Pointer:
		if !v.IsNil() {
			return sound(name, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			if err := sound(fmt.Sprintf("%s[%d]", name, i), v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if inner, _, _ := strings.Cut(field.Tag.Get("json"), ","); field.IsExported() {
				if err := sound(cmp.Or(inner, field.Name), v.Field(i)); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		if s, is := v.Interface().(Spread); is && !s.rises() {
			return fmt.Errorf("%s: its quantiles do not rise", name)
		}
	}
	if wrong {
		return fmt.Errorf("%s: %v is negative, or no number", name, v)
	}
	return nil
}

// Sum adds the counts of both. It changes neither.
func Sum[K comparable](a, b map[K]int64) map[K]int64 {
	out := maps.Clone(a)
	if out == nil {
		return maps.Clone(b)
	}
	for k, n := range b {
		out[k] += n
	}
	return out
}

// Drift is how fast a client's clock runs beside the server's, in microseconds a second (ppm), with the largest error that
// the readings allow. It is not known where there are fewer than two readings.
//
// The error of a reading is a bound and no deviation: what is common to all readings, such as a lease that was guessed, is
// not in it. Of all pairs of readings, the one with the smallest errors beside the time between them speaks.
func (c Client) Drift() (ppm, errPPM float64, known bool) {
	for i, a := range c.Clock {
		for _, b := range c.Clock[i+1:] {
			dt := b.At.Sub(a.At).Seconds()
			if dt <= 0 {
				continue
			}
			if e := 1000 * (a.ErrorMS + b.ErrorMS) / dt; !known || e < errPPM {
				ppm, errPPM, known = 1000*(b.SkewMS-a.SkewMS)/dt, e, true
			}
		}
	}
	return ppm, errPPM, known
}

// Failovers are what masters remember of how they came to be masters. A server knows that it has taken a master's place until it is started
// again, or has had no replica for an hour. So there were at least so many.
type Failovers struct {
	Seen    int64   `json:"seen"`    // masters that have taken another's place
	Seconds float64 `json:"seconds"` // since they were started, all masters together
}

// Every is the time between two failovers of one master, as far as the masters remember; 0 where they remember none.
func (f *Failovers) Every() time.Duration {
	if f == nil || f.Seen == 0 {
		return 0
	}
	return time.Duration(f.Seconds / float64(f.Seen) * float64(time.Second))
}

// Beside adds what masters of other keys remember.
func (f *Failovers) Beside(o *Failovers) *Failovers {
	if f == nil || o == nil {
		return cmp.Or(f, o)
	}
	return &Failovers{f.Seen + o.Seen, f.Seconds + o.Seconds}
}
