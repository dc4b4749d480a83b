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

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// WriteMetrics writes a state in Prometheus' text format.
func WriteMetrics(w io.Writer, s State) error {
	m := &metrics{}
	m.gauge("lockmigrate_up", "1 while every master can be read, and the namespace if there is one.", one(s.Error == ""))
	m.family("lockmigrate_commands_total", "counter", "Calls of commands since the page began, by the server's own counters; denied: SETNX and GETSET that it refused, from Redis 6.2 on.")
	each(m, s.Totals, "command")
	m.gauge("lockmigrate_monitor_running", "1 while MONITOR runs on every master.", one(s.Monitor == "on"))
	m.family("lockmigrate_monitor_seconds_total", "counter", "For how long MONITOR ran. Acquisitions, hazards and overlaps are counted only then.")
	m.sample(s.Monitored)
	if s.Monitored > 0 { // else nobody has looked: a zero would say that there were none
		m.family("lockmigrate_acquired_total", "counter", "Acquisitions seen by MONITOR, by kind of client.")
		each(m, s.Acquired, "kind")
		if s.Quiet != nil {
			m.gauge("lockmigrate_quiet_seconds", "How long MONITOR has run since it saw the last acquisition: nobody has acquired for that long.", *s.Quiet)
		}
		m.family("lockmigrate_hazards_total", "counter", "Hazards that happened while MONITOR ran.")
		each(m, s.Hazards, "hazard")
		m.family("lockmigrate_overlaps_total", "counter", "Times that two held one lock while MONITOR ran.")
		m.sample(float64(s.Overlaps))
	}
	m.family("lockmigrate_client_skew_seconds", "gauge", "A host's clock less the server's; of several clients the one that is farthest off.")
	skews := map[[2]string]float64{} // by host and dialect: ports would make a new series with every connection
	for _, c := range s.Clients {
		if id := [2]string{c.Host, c.Dialect}; c.SkewMS != nil {
			skews[id] = farther(skews[id], *c.SkewMS/1000)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(skews), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		m.sample(skews[id], "host", id[0], "dialect", id[1])
	}
	if !s.Locks.At.IsZero() { // there was a census
		m.family("lockmigrate_locks", "gauge", "Lock keys at the last census, by state.")
		each(m, s.Locks.ByState, "state")
		m.gauge("lockmigrate_keys_unread", "Keys that the last census could not read.", float64(s.Locks.Unread))
		m.gauge("lockmigrate_census_timestamp_seconds", "When the last census was, by this host's clock.", float64(s.Locks.At.Unix()))
	}
	if s.Namespace != nil {
		m.namespace(s.Namespace)
	}
	_, err := io.WriteString(w, m.b.String())
	return err
}

func (m *metrics) namespace(n *stages.Document) {
	of := []string{"namespace", n.Namespace}
	m.family("lockmigrate_stage", "gauge", "1 for the namespace's stage, 0 for the others.")
	for stage := stages.Legacy; stages.Valid(stage); stage++ {
		m.sample(one(stage.String() == n.Stage), "namespace", n.Namespace, "stage", stage.String())
	}
	m.gauge("lockmigrate_epoch", "The namespace's epoch.", float64(n.Epoch), of...)
	var silent, behind int
	counts, seen, skew := map[string]int{}, map[string]float64{}, map[string]float64{}
	for _, member := range n.Members {
		counts[cmp.Or(member.Stage, "none")]++
		if member.Left < 0 {
			silent++
		} else if member.Epoch != n.Epoch {
			behind++
		}
		seen[member.Host] = max(seen[member.Host], float64(member.Seen)/1000)
		skew[member.Host] = farther(skew[member.Host], float64(member.Skew)/1000)
	}
	m.family("lockmigrate_members", "gauge", "Members by the stage that they run.")
	each(m, counts, "stage", of...)
	m.gauge("lockmigrate_members_silent", "Members that have not reported within their lease.", float64(silent), of...)
	m.gauge("lockmigrate_members_behind", "Members that live and do not run the namespace's epoch.", float64(behind), of...)
	m.family("lockmigrate_member_seen_seconds", "gauge", "Time since the last report of a member, the longest of each host.")
	each(m, seen, "host", of...)
	m.family("lockmigrate_member_skew_seconds", "gauge", "A member's clock less the server's, the largest of each host.")
	each(m, skew, "host", of...)
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// farther is the one of two numbers that is farther from zero.
func farther(a, b float64) float64 {
	if math.Abs(b) > math.Abs(a) {
		return b
	}
	return a
}

// metrics is the text so far.
type metrics struct {
	b    strings.Builder
	name string // of the family
}

func (m *metrics) family(name, kind, help string) {
	m.name = name
	fmt.Fprintf(&m.b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// gauge is a family of one sample.
func (m *metrics) gauge(name, help string, value float64, labels ...string) {
	m.family(name, "gauge", help)
	m.sample(value, labels...)
}

// each adds a sample for each entry of a map, whose keys are values of a label.
func each[N int | int64 | float64](m *metrics, all map[string]N, name string, labels ...string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		m.sample(float64(all[key]), append(slices.Clone(labels), name, key)...)
	}
}

// sample adds a line to the family. Labels are names and values in turn.
func (m *metrics) sample(value float64, labels ...string) {
	m.b.WriteString(m.name)
	for i := 0; i+1 < len(labels); i += 2 {
		fmt.Fprintf(&m.b, `%s%s="%s"`, map[bool]string{true: "{", false: ","}[i == 0], labels[i], label(labels[i+1]))
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
