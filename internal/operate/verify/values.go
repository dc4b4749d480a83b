package verify

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
)

// value is what stood on a key: an expiry, or something without TTL that no modern client writes.
type value struct {
	Expires int64  `json:"expires,omitempty"` // of an expiry, in nanoseconds, else 0
	Held    bool   `json:"held,omitempty"`    // it looked held, or nobody can tell that it was not
	TTL     bool   `json:"ttl,omitempty"`
	Dialect string `json:"dialect,omitempty"`
}

const (
	mostValues = 100_000 // that are remembered from the start
	mostNamed  = 10      // keys in a list
)

// values reads what stands on the lock keys of all masters, and the latest of their clocks. It is whole when every key could be read.
func (q *inquiry) values(ctx context.Context) (found map[string]value, now time.Time, why []string) {
	found = map[string]value{}
	for _, m := range q.masters {
		conn, err := q.end.DialRaw(ctx, m.addr)
		if err != nil {
			why = append(why, m.addr+": "+err.Error())
			continue
		}
		left := 0
		c := census.New(census.Options{Match: q.opts.Match, Confidence: census.Medium, GhostAfter: time.Hour, Progress: func(p census.Progress) { says(q, q.opts.Reading, p) }, Emit: func(r *census.Row) error {
			q.matches(string(r.Key))
			v, ok := valueOf(r)
			switch id := m.addr + " " + string(r.Key); {
			case !ok:
			case len(found) >= mostValues:
				left++
			default:
				found[id] = v
			}
			return nil
		}})
		if err := c.Scan(ctx, conn); err != nil {
			why = append(why, m.addr+": "+endOf(err))
		}
		s := c.Summary()
		if s.Clock.After(now) {
			now = s.Clock
		}
		if s.Unread > 0 || s.Skipped > 0 {
			why = append(append(why, fmt.Sprintf("%s: %d keys could not be read, %d names are too long", m.addr, s.Unread, s.Skipped)), s.Lacks...)
		}
		if left > 0 {
			why = append(why, fmt.Sprintf("%s: more than %d values: %d were left out", m.addr, mostValues, left))
		}
	}
	return found, now, why
}

// valueOf tells what a legacy client may have written. Bridge values and tokens have a TTL, so a string without
// one that was found on a lock key is not theirs, whatever it says.
func valueOf(r *census.Row) (value, bool) {
	v := value{TTL: r.TTL != census.NoTTL}
	switch {
	case r.Format.Legacy():
		v.Expires, v.Held, v.Dialect = int64(r.Expires), r.State == census.Held, dialectOf(r.Finding)
	case r.Type == "string" && !v.TTL && r.Format != census.Bridge:
		v.Held = true
	default:
		return v, false
	}
	return v, true
}

// compareValues tells what the values of the start and of the end show: the keys that looked held, and what was
// written or taken away by a legacy client in between. The maps are by server and key. Now is the server's time of the end: a value
// that was over by then, a bridge member may have taken over.
func compareValues(before, after map[string]value, now time.Time) (heldBefore, heldAfter []string, seen []Client) {
	keyOf := func(id string) string {
		_, key, _ := strings.Cut(id, " ")
		return key
	}
	note := func(list *[]string, key string) {
		if len(*list) < mostNamed {
			*list = append(*list, key)
		}
	}
	for id, was := range before {
		if !was.Held {
			continue
		}
		note(&heldBefore, keyOf(id))
		if _, still := after[id]; !still && !was.TTL && now.UnixNano() < was.Expires {
			sees(&seen, Client{Evidence: "census: a value that was live at the start was deleted within the window", Dialect: was.Dialect, Keys: []string{keyOf(id)}})
		}
	}
	for id, is := range after {
		was, known := before[id]
		if is.Held {
			note(&heldAfter, keyOf(id))
		}
		if is.Expires != 0 && (!known || was.Expires != is.Expires) {
			sees(&seen, Client{Evidence: "census: a legacy value was written within the window", Dialect: is.Dialect, Keys: []string{keyOf(id)}})
		}
	}
	return heldBefore, heldAfter, seen
}
