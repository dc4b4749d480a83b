package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// duties are the obligations of a certificate. Each starts from no, and says yes only to what is there.
var duties = []struct {
	id      string
	applies func(*Evidence) bool // nil: to every run
	asks    func(*Evidence) (discharged bool, evidence string)
}{
	{"window", nil, windowIsLongEnough},
	{"keys", nil, keysAreAll},
	{"masters", nil, mastersAreAll},
	{"counters", nil, countersProveThemselves},
	{"commands", nil, commandsAreAccountedFor},
	{"denials", nil, nobodyWasDenied},
	{"values", func(e *Evidence) bool { return !e.OnlyMembers }, nothingIsHeld},
	{"members", func(e *Evidence) bool { return !e.OnlyMembers && e.Namespace != nil }, recordStands},
	{"handover", func(e *Evidence) bool { return e.OnlyMembers }, onlyMembers},
}

// Judge weighs the evidence. A legacy client that was seen decides; without one the verdict is none-seen when
// every obligation is discharged, and inconclusive otherwise. It depends on the evidence alone.
func Judge(e Evidence) (verdict Verdict, why string, obligations []fence.Obligation) {
	var missing []string
	for _, d := range duties {
		if d.applies != nil && !d.applies(&e) {
			continue
		}
		discharged, evidence := d.asks(&e)
		obligations = append(obligations, fence.Obligation{ID: d.id, Discharged: discharged, Evidence: evidence})
		if !discharged {
			missing = append(missing, evidence)
		}
	}
	switch {
	case len(e.Seen) > 0:
		return Seen, nouns(int64(len(e.Seen)), "finding") + " of a legacy client", obligations
	case len(missing) > 0:
		return Inconclusive, strings.Join(missing, "; "), obligations
	}
	if e.OnlyMembers {
		return NoneSeen, fmt.Sprintf("every command that touched a lock key within %v came from a member's connection; all %d obligations are discharged",
			e.window().Round(100*time.Millisecond), len(obligations)), obligations
	}
	return NoneSeen, fmt.Sprintf("no legacy client acted on %s within %v; all %d obligations are discharged",
		nouns(int64(len(e.Masters)), "master"), e.window().Round(100*time.Millisecond), len(obligations)), obligations
}

// window is what the looks of all masters cover. It is not the difference of two wall clocks, which may be set.
func (e *Evidence) window() time.Duration { return seconds(e.LookedSeconds) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func windowIsLongEnough(e *Evidence) (bool, string) {
	window, longest := e.window(), seconds(e.LongestSeconds)
	switch {
	case e.Started.IsZero() || e.Ended.IsZero():
		return false, "the window has no beginning or no end"
	case !e.Finished:
		return false, fmt.Sprintf("the run was interrupted after %v of %v", window.Round(time.Second), seconds(e.AskedSeconds))
	case longest <= 0:
		return false, "nobody said how long a legacy client may be silent, and the record does not: give the longest lease or pause between two runs of a job with --longest-silence"
	case window < longest:
		return false, fmt.Sprintf("the window of %v is shorter than the longest silence of %v", window.Round(100*time.Millisecond), longest)
	}
	from := "which was said to be"
	if n := e.Namespace; n != nil && n.Longest == e.LongestSeconds {
		from = "which the record of namespace " + n.Name + " says is"
	}
	return true, fmt.Sprintf("the window of %v covers the longest silence, %s %v", window.Round(100*time.Millisecond), from, longest)
}

func keysAreAll(e *Evidence) (bool, string) {
	shown := "every key counts as a lock key"
	if len(e.Patterns) > 0 {
		shown = "keys " + strings.Join(e.Patterns, " ")
	}
	for _, p := range e.Patterns {
		if !slices.Contains(e.Matched, p) {
			return false, fmt.Sprintf("%q matched neither a key nor a command that MONITOR showed: is it written right, and is this the server?", p)
		}
	}
	if e.Namespace == nil {
		return true, shown
	}
	if len(e.Namespace.Patterns) == 0 {
		return false, "the patterns of namespace " + e.Namespace.Name + " are not known"
	}
	if missing, some := servers.Uncovered(e.Patterns, e.Namespace.Patterns); some {
		return false, fmt.Sprintf("the run looked at %s, which leaves out %q of namespace %s", shown, missing, e.Namespace.Name)
	}
	return true, shown + ": all of namespace " + e.Namespace.Name
}

func mastersAreAll(e *Evidence) (bool, string) {
	if len(e.Masters) == 0 {
		return false, "no master was looked at"
	}
	for _, m := range e.Masters {
		if m.Partial != "" {
			return false, m.Addr + ": " + m.Partial
		}
		// The current epoch goes round among the nodes: one that is cut off names masters that were replaced.
		first, _, _ := strings.Cut(e.Masters[0].Moves, ",")
		if epoch, _, _ := strings.Cut(m.Moves, ","); epoch != first {
			return false, fmt.Sprintf("the masters do not agree on the cluster: %s is at %s, %s at %s; another master may serve slots", e.Masters[0].Addr, cmp.Or(first, "an unknown epoch"), m.Addr, cmp.Or(epoch, "an unknown epoch"))
		}
	}
	if !e.MastersSame {
		return false, strings.TrimSuffix("the masters are not those of the start, or are not known at the end: "+e.MastersWhy, ": ")
	}
	return true, nouns(int64(len(e.Masters)), "master") + ", the same at the end"
}

const movesUnknown = "it is not known whether slots of the cluster move: grant +cluster|info"

func countersProveThemselves(e *Evidence) (bool, string) {
	looks := 0
	for _, m := range e.Masters {
		switch {
		case m.Moves == "":
			return false, m.Addr + ": " + movesUnknown
		case len(m.Breaks) > 0:
			return false, m.Addr + ": " + strings.Join(m.Breaks, "; ")
		case m.RunID == "" || m.Looks < 2 || !m.Ended:
			return false, m.Addr + ": its counters could not be read at the start and at the end"
		case m.Canary < int64(m.Looks-1):
			return false, fmt.Sprintf("%s: its counters do not count: our own ECHO rose by %d in %d looks", m.Addr, m.Canary, m.Looks)
		}
		looks += m.Looks
	}
	return len(e.Masters) > 0, fmt.Sprintf("%d looks at the counters: one run id a master, no count fell, our own ECHO rose with every look", looks)
}

// commandsAreAccountedFor also says where MONITOR failed: that decides nothing, and may be why commands are not accounted for.
func commandsAreAccountedFor(e *Evidence) (bool, string) {
	yes, evidence := e.accounted()
	for _, m := range e.Masters {
		evidence = strings.Join(append([]string{evidence}, m.WatchBreaks...), "; ")
	}
	return yes, evidence
}

func (e *Evidence) accounted() (bool, string) {
	var run, watched, ruled int64
	if n := len(e.Unexplained); n > 0 {
		here := slices.IndexFunc(e.Unexplained, func(c Client) bool { return c.DB == e.Database })
		if here >= 0 && e.OnlyMembers {
			return false, "a process that is no member touched a lock key: " + e.Unexplained[here].String()
		}
		if here >= 0 {
			return false, "nothing explains what this client did on a lock key: " + e.Unexplained[here].String()
		}
		c := e.Unexplained[0]
		return false, fmt.Sprintf("%s: that is in database %d, and the locks are in database %d: --ignore-db %d says that it is another fleet", c, c.DB, e.Database, c.DB)
	}
	for _, m := range e.Masters {
		if m.Writes == 0 {
			return false, strings.TrimSuffix(m.Addr+": which commands write is not known: grant +command: "+m.TableWhy, ": ")
		}
		if m.Unexplained > 0 {
			return false, fmt.Sprintf("%s: MONITOR showed %s on lock keys that nothing explains", m.Addr, nouns(m.Unexplained, "command"))
		}
		var unwatched []string
		for _, c := range m.Commands {
			name := strings.ToUpper(c.Name)
			switch {
			case c.Watched > c.Run || c.Watched < 0:
				return false, m.Addr + ": its commands do not add up"
			case c.Unmatched != 0:
				return false, fmt.Sprintf("%s: MONITOR and the counters disagree by %d %s", m.Addr, c.Unmatched, name)
			case c.Unclear != 0:
				return false, fmt.Sprintf("%s: the key or the form of %d %s could not be read", m.Addr, c.Unclear, name)
			case c.Unwatched() > 0 && slices.Contains(m.Ruled, c.Name):
				ruled += c.Unwatched()
			case c.Unwatched() > 0:
				unwatched = append(unwatched, fmt.Sprintf("%d of %d %s", c.Unwatched(), c.Run, name))
			}
			run, watched = run+c.Run, watched+c.Watched
		}
		if n := len(unwatched); n > 0 {
			more := ""
			if n > mostNamed {
				more = fmt.Sprintf(" and %d other commands", n-mostNamed)
			}
			return false, fmt.Sprintf("%s: %s%s ran while MONITOR was off, on keys that nobody saw: watch the whole window with --monitor", m.Addr, strings.Join(unwatched[:min(n, mostNamed)], ", "), more)
		}
	}
	if run == 0 {
		return len(e.Masters) > 0, "no command ran that its server says writes"
	}
	var parts []string
	if watched > 0 {
		explained := "is one of this project's or of a client that may stay"
		if e.OnlyMembers {
			explained = "came from a member's connection"
		}
		parts = append(parts, fmt.Sprintf("MONITOR showed each of the %d commands that write, between the same marks as the counters; each that touched a lock key %s", watched, explained))
	}
	if ruled > 0 {
		but := ""
		if len(e.Trusted) > 0 {
			but = " but " + strings.Join(e.Trusted, ", ")
		}
		parts = append(parts, fmt.Sprintf("%d more ran under ACL rules that let no user%s run them on these keys", ruled, but))
	}
	return len(e.Masters) > 0, strings.Join(parts, "; ")
}

// leastLog is how many entries ACL LOG must keep where nothing else tells who was denied. It keeps 128 by default.
const leastLog = 64

func nobodyWasDenied(e *Evidence) (bool, string) {
	var elsewhere, redirected int64
	for _, m := range e.Masters {
		major := majorOf(m.Version)
		var here, other int64 // denied; and those of them that ACL LOG lets pass
		for _, c := range m.Commands {
			here += c.Denied
			other += min(c.Denied, c.Elsewhere)
		}
		switch {
		case !m.Named && m.NamedWhy != "":
			return false, m.Addr + ": " + m.NamedWhy
		case !m.Named:
			return false, m.Addr + ": SETNX or GETSET is renamed or hidden, or COMMAND INFO cannot be asked (grant +command|info): attempts are not counted"
		case m.LogDenied > 0:
			return false, fmt.Sprintf("%s: %d commands that can take a lock were denied on lock keys; or SETNX or GETSET were, on keys that ACL LOG does not tell", m.Addr, m.LogDenied)
		case m.LogUntold > 0:
			return false, fmt.Sprintf("%s: %d commands that can take a lock were denied on keys that ACL LOG does not tell: a fence with --keep, or key patterns in place of commands, make it tell the keys", m.Addr, m.LogUntold)
		case m.LogGap != "" && !(here == 0 && major >= 7 && m.CountsDenied):
			return false, m.Addr + ": ACL LOG does not tell which commands were denied: " + m.LogGap
		case here > other && (m.Refused > 0 || here-other > m.Redirected || !m.LogRead):
			return false, fmt.Sprintf("%s: %d commands that can take a lock were denied, %d of them on other keys: a fence, or a server that refuses writes", m.Addr, here, other)
		case major >= 7 && m.CountsDenied:
		case major >= 6 && !m.LogRead:
			return false, fmt.Sprintf("%s: %s does not count all that it denies, and ACL LOG cannot be read (%s): grant +acl|log, or +acl", m.Addr, cmp.Or(m.Is, "Redis "+m.Version), m.LogWhy)
		case major >= 6 && m.LogLength < leastLog:
			return false, fmt.Sprintf("%s: ACL LOG keeps %d entries, or does not say how many (CONFIG GET acllog-max-len): a denied client may be missing", m.Addr, m.LogLength)
		case major < 2:
			return false, m.Addr + ": its version is not known"
		case m.Refuses != "":
			return false, fmt.Sprintf("%s: it refused writes (%s), and does not count whose", m.Addr, m.Refuses)
		}
		elsewhere += other
		redirected += here - other
	}
	if elsewhere+redirected > 0 {
		return len(e.Masters) > 0, fmt.Sprintf("%d were denied, all on other keys, and %d were sent to another node, where they count", elsewhere, redirected)
	}
	return len(e.Masters) > 0, "no command that can take a lock was denied"
}

// offersUncounted tells a node of a cluster whose server counts neither the commands that move slots nor ASK.
func (m Master) offersUncounted() bool {
	var major, minor int
	_, _ = fmt.Sscanf(m.Version, "%d.%d", &major, &minor)
	return strings.HasPrefix(m.Moves, "epoch") && (major < 6 || major == 6 && minor < 2)
}

// majorOf reads the first number of a version, 0 if there is none.
func majorOf(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

func nothingIsHeld(e *Evidence) (bool, string) {
	v := e.Values
	switch {
	case !v.StartWhole || !v.EndWhole:
		return false, "what stands on the keys is not known: " + cmp.Or(strings.Join(v.Why, "; "), "the keys were not looked at")
	case v.Changed > 0:
		return false, "a legacy client wrote or deleted " + nouns(int64(v.Changed), "value") + " within the window"
	case len(v.HeldAfter) > 0:
		return false, fmt.Sprintf("a legacy client may hold %q at the end: wait until it is released, or see sweep", v.HeldAfter)
	case len(v.HeldBefore) > 0:
		return false, fmt.Sprintf("a legacy client may have held %q at the start: look again", v.HeldBefore)
	}
	return true, "no lock key held a live legacy value, or a value without TTL, at the start or at the end"
}

func recordStands(e *Evidence) (bool, string) {
	n := e.Namespace
	switch {
	case n == nil || n.Name == "" || n.Epoch <= 0:
		return false, "the record of the namespace could not be read"
	case n.Legacy > 0:
		return false, nouns(int64(n.Legacy), "member") + " of namespace " + n.Name + " ran stage legacy, or held a lock of it"
	case n.Living == 0:
		return false, "no member of namespace " + n.Name + " reports any more: its services may use another server, or have not started"
	case !n.Same:
		return false, fmt.Sprintf("namespace %s changed, or could not be read at the end", n.Name)
	}
	return true, fmt.Sprintf("namespace %s stayed at epoch %d, no member ran stage legacy, and %s reported at the end", n.Name, n.Epoch, nouns(int64(n.Living), "member"))
}

func nouns(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
