package observe

import (
	"cmp"
	"math"
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
)

// Merge makes one report of those of several masters. A client has a connection to each: grouped by host or
// name these are one row; connections stay apart, and their rows name the server.
func Merge(group Group, all []Report) Report {
	if len(all) == 1 {
		return all[0]
	}
	out := Report{Complete: true, Hazards: map[string]int64{}, Clients: []Row{}, Overlaps: []OverlapRow{}, Events: []EventRow{}, Ghosts: []GhostRow{}}
	for i, r := range all {
		if i == 0 || r.Started.Before(out.Started) {
			out.Started = r.Started
		}
		out.WindowSeconds = max(out.WindowSeconds, r.WindowSeconds)
		out.Commands += r.Commands
		out.LockCommands += r.LockCommands
		out.Garbled += r.Garbled
		out.Crowded += r.Crowded
		out.LegacyOps += r.LegacyOps
		out.OtherOps += r.OtherOps
		out.LegacySets += r.LegacySets
		out.OtherSets += r.OtherSets
		out.OverlapCount += r.OverlapCount
		out.Complete = out.Complete && r.Complete
		for _, why := range r.Refused {
			if !slices.Contains(out.Refused, why) {
				out.Refused = append(out.Refused, why)
			}
		}
		for _, row := range r.Clients {
			out.client(group, r.Server, row)
		}
		out.Overlaps = append(out.Overlaps, r.Overlaps...)
		out.Events = append(out.Events, r.Events...)
		out.Ghosts = append(out.Ghosts, r.Ghosts...)
		out.Hazards = profile.Sum(out.Hazards, r.Hazards)
	}
	slices.SortFunc(out.Clients, byKind)
	slices.SortFunc(out.Overlaps, func(a, b OverlapRow) int { return a.From.Compare(b.From) })
	slices.SortFunc(out.Events, func(a, b EventRow) int { return a.At.Compare(b.At) })
	slices.SortFunc(out.Ghosts, func(a, b GhostRow) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// client takes in a row of one server.
func (r *Report) client(group Group, server string, row Row) {
	i := slices.IndexFunc(r.Clients, func(other Row) bool {
		return other.Addr == row.Addr && other.Kind == row.Kind && other.Dialect == row.Dialect
	})
	// The port of a connection says nothing without its server, and a name may be nobody's.
	if (group == ByHost || group == ByName && row.Addr == row.Name) && i >= 0 {
		r.Clients[i] = joined(r.Clients[i], row)
		return
	}
	if group != ByHost {
		row.Server = server
	}
	r.Clients = append(r.Clients, row)
}

// joined makes one row of two that different servers have of one client. What can only be one thing is
// what the row with more to say has.
func joined(a, b Row) Row {
	if kindOrder(b.Kind) < kindOrder(a.Kind) || b.Kind == a.Kind && b.Tries > a.Tries {
		a, b = b, a
	}
	a.Server = ""
	a.Connections += b.Connections
	a.Tries += b.Tries
	a.Acquired += b.Acquired
	a.Released += b.Released
	a.Hold.kept = slices.Concat(a.Hold.kept, b.Hold.kept)
	a.Wait.kept = slices.Concat(a.Wait.kept, b.Wait.kept)
	a.percentiles()
	a.Sent = profile.Sum(a.Sent, b.Sent)
	if b.Pauses > a.Pauses {
		a.PauseP50MS = b.PauseP50MS
	}
	a.Pauses += b.Pauses
	a.PauseMaxMS = max(a.PauseMaxMS, b.PauseMaxMS)
	if b.PollSamples > a.PollSamples && a.Kind == b.Kind {
		a.PollMS, a.PollSamples = b.PollMS, b.PollSamples
	}
	for _, k := range b.Keys {
		if !slices.Contains(a.Keys, k) && len(a.Keys) < maxKeysShown {
			a.Keys = append(slices.Clip(a.Keys), k)
		}
	}
	if a.LeaseMS == nil && a.Kind == b.Kind {
		a.LeaseMS, a.LeaseFrom = b.LeaseMS, b.LeaseFrom
	}
	a.skews(b)
	return a
}

// skews takes the better of two estimates of one clock, and widens its bar where they disagree: each is
// against the clock of its own server.
func (r *Row) skews(b Row) {
	switch {
	case b.SkewMS == nil:
		return
	case r.SkewMS == nil || *b.SkewErrorMS < *r.SkewErrorMS:
		r.SkewMS, r.SkewErrorMS, r.Samples, b = b.SkewMS, b.SkewErrorMS, b.Samples, *r
	}
	if b.SkewMS != nil {
		r.SkewErrorMS = ref(max(*r.SkewErrorMS, round1(math.Abs(*b.SkewMS-*r.SkewMS)-*b.SkewErrorMS)))
	}
}
