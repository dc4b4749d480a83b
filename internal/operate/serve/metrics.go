package serve

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// WriteMetrics writes a state in Prometheus' text format.
func WriteMetrics(w io.Writer, s State) error {
	m := &metrics{}
	up := 1.0
	if s.Error != "" {
		up = 0
	}
	m.family("lockmigrate_up", "gauge", "1 while the server can be read.")
	m.sample("lockmigrate_up", up)
	m.family("lockmigrate_commands_total", "counter", "Calls of commands since the page began, by the server's own counters; denied: SETNX and GETSET that it refused, from Redis 6.2 on.")
	for _, name := range slices.Sorted(maps.Keys(s.Totals)) {
		m.sample("lockmigrate_commands_total", s.Totals[name], "command", name)
	}
	running := 0.0
	if s.Monitor == "on" {
		running = 1
	}
	m.family("lockmigrate_monitor_running", "gauge", "1 while MONITOR runs on every master.")
	m.sample("lockmigrate_monitor_running", running)
	m.family("lockmigrate_monitor_seconds_total", "counter", "For how long MONITOR ran. Acquisitions, hazards and overlaps are counted only then.")
	m.sample("lockmigrate_monitor_seconds_total", s.Monitored)
	if s.Monitored > 0 { // else nobody has looked: a zero would say that there were none
		m.family("lockmigrate_acquired_total", "counter", "Acquisitions seen by MONITOR, by kind of client.")
		for _, kind := range slices.Sorted(maps.Keys(s.Acquired)) {
			m.sample("lockmigrate_acquired_total", float64(s.Acquired[kind]), "kind", kind)
		}
		if s.Quiet != nil {
			m.family("lockmigrate_quiet_seconds", "gauge", "How long MONITOR has run since it saw the last acquisition: nobody has acquired for that long.")
			m.sample("lockmigrate_quiet_seconds", *s.Quiet)
		}
		m.family("lockmigrate_hazards_total", "counter", "Hazards that happened while MONITOR ran.")
		for _, name := range slices.Sorted(maps.Keys(s.Hazards)) {
			m.sample("lockmigrate_hazards_total", float64(s.Hazards[name]), "hazard", name)
		}
		m.family("lockmigrate_overlaps_total", "counter", "Times that two held one lock while MONITOR ran.")
		m.sample("lockmigrate_overlaps_total", float64(s.Overlaps))
	}
	m.family("lockmigrate_client_skew_seconds", "gauge", "A host's clock less the server's; of several clients the one that is farthest off.")
	skews := map[[2]string]float64{} // by host and dialect: ports would make a new series with every connection
	for _, c := range s.Clients {
		if c.SkewMS == nil {
			continue
		}
		id := [2]string{c.Host, c.Dialect}
		if v, known := skews[id]; !known || math.Abs(*c.SkewMS) > math.Abs(v) {
			skews[id] = *c.SkewMS
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(skews), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		m.sample("lockmigrate_client_skew_seconds", skews[id]/1000, "host", id[0], "dialect", id[1])
	}
	if !s.Locks.At.IsZero() { // there was a census
		m.family("lockmigrate_locks", "gauge", "Lock keys at the last census, by state.")
		for _, state := range slices.Sorted(maps.Keys(s.Locks.ByState)) {
			m.sample("lockmigrate_locks", float64(s.Locks.ByState[state]), "state", state)
		}
		m.family("lockmigrate_keys_unread", "gauge", "Keys that the last census could not read.")
		m.sample("lockmigrate_keys_unread", float64(s.Locks.Unread))
		m.family("lockmigrate_census_timestamp_seconds", "gauge", "When the last census was, by this host's clock.")
		m.sample("lockmigrate_census_timestamp_seconds", float64(s.Locks.At.Unix()))
	}
	if n := s.Namespace; n != nil {
		m.family("lockmigrate_stage", "gauge", "1 for the namespace's stage, 0 for the others.")
		for _, stage := range []string{"legacy", "bridge", "modern"} {
			v := 0.0
			if stage == n.Stage {
				v = 1
			}
			m.sample("lockmigrate_stage", v, "namespace", n.Namespace, "stage", stage)
		}
		m.family("lockmigrate_epoch", "gauge", "The namespace's epoch.")
		m.sample("lockmigrate_epoch", float64(n.Epoch), "namespace", n.Namespace)
		m.family("lockmigrate_members", "gauge", "Members by the stage that they run.")
		counts := map[string]int{}
		for _, member := range n.Members {
			counts[cmp.Or(member.Stage, "none")]++
		}
		for _, stage := range slices.Sorted(maps.Keys(counts)) {
			m.sample("lockmigrate_members", float64(counts[stage]), "namespace", n.Namespace, "stage", stage)
		}
		var silent, behind int
		seen, skew := map[string]float64{}, map[string]float64{}
		for _, member := range n.Members {
			if member.Left < 0 {
				silent++
			} else if member.Epoch != n.Epoch {
				behind++
			}
			seen[member.Host] = max(seen[member.Host], float64(member.Seen)/1000)
			if v := float64(member.Skew) / 1000; math.Abs(v) >= math.Abs(skew[member.Host]) {
				skew[member.Host] = v
			}
		}
		m.family("lockmigrate_members_silent", "gauge", "Members that have not reported within their lease.")
		m.sample("lockmigrate_members_silent", float64(silent), "namespace", n.Namespace)
		m.family("lockmigrate_members_behind", "gauge", "Members that live and do not run the namespace's epoch.")
		m.sample("lockmigrate_members_behind", float64(behind), "namespace", n.Namespace)
		m.family("lockmigrate_member_seen_seconds", "gauge", "Time since the last report of a member, the longest of each host.")
		for _, host := range slices.Sorted(maps.Keys(seen)) {
			m.sample("lockmigrate_member_seen_seconds", seen[host], "namespace", n.Namespace, "host", host)
		}
		m.family("lockmigrate_member_skew_seconds", "gauge", "A member's clock less the server's, the largest of each host.")
		for _, host := range slices.Sorted(maps.Keys(skew)) {
			m.sample("lockmigrate_member_skew_seconds", skew[host], "namespace", n.Namespace, "host", host)
		}
	}
	_, err := io.WriteString(w, m.b.String())
	return err
}

type metrics struct{ b strings.Builder }

func (m *metrics) family(name, kind, help string) {
	fmt.Fprintf(&m.b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (m *metrics) sample(name string, value float64, labels ...string) {
	m.b.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		open := ","
		if i == 0 {
			open = "{"
		}
		fmt.Fprintf(&m.b, `%s%s="%s"`, open, labels[i], label(labels[i+1]))
	}
	if len(labels) > 0 {
		m.b.WriteByte('}')
	}
	m.b.WriteString(" " + strconv.FormatFloat(value, 'f', -1, 64) + "\n")
}

// label escapes a label's value as the format wants it; bytes that are no UTF-8 are replaced.
func label(v string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(v, "\uFFFD"))
}
