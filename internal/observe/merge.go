package observe

import (
	"cmp"
	"slices"
)

// HazardNames returns the names of the hazards that happened, the most frequent first.
func HazardNames(h map[string]int64) []string {
	names := []string{}
	for name := range h {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(h[b], h[a]), cmp.Compare(a, b)) })
	return names
}

// Merge makes one report of those of several masters, each with its own clients' connections.
func Merge(all []Report) Report {
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
		out.OverlapCount += r.OverlapCount
		out.Complete = out.Complete && r.Complete
		out.Clients = append(out.Clients, r.Clients...)
		out.Overlaps = append(out.Overlaps, r.Overlaps...)
		out.Events = append(out.Events, r.Events...)
		out.Ghosts = append(out.Ghosts, r.Ghosts...)
		for name, n := range r.Hazards {
			out.Hazards[name] += n
		}
	}
	slices.SortFunc(out.Events, func(a, b EventRow) int { return a.At.Compare(b.At) })
	return out
}
