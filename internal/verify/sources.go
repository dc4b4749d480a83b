package verify

import (
	"fmt"
	"iter"
	"maps"
	"strings"
	"time"
)

func mapKeys(m map[string]Client) iter.Seq[string] { return maps.Keys(m) }

func nouns(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// sources says of each kind of evidence whether it did its work and what it found.
func (q *inquiry) sources(calls, rejected int64, held []string) {
	add := func(name string, state State, found string, args ...any) {
		q.cert.Sources = append(q.cert.Sources, Source{name, state, fmt.Sprintf(found, args...)})
	}
	state := Whole
	var logless []string
	hits := int64(0)
	for _, m := range q.masters {
		if len(m.holes) > 0 {
			state = Broken
		}
		if m.logFailed != nil {
			logless = append(logless, m.addr)
		}
		for _, h := range m.hits {
			hits += h.Count
		}
	}
	add("commandstats", state, "%d SETNX or GETSET run, %d denied, on %s with unbroken run ids", calls, rejected, nouns(len(q.masters), "master"))
	if state == Broken {
		s := &q.cert.Sources[len(q.cert.Sources)-1]
		s.Found = fmt.Sprintf("%d SETNX or GETSET run, %d denied, as far as the counters were there", calls, rejected)
	}
	if len(logless) > 0 {
		add("acl-log", Unused, "cannot be read on %s", strings.Join(logless, ", "))
	} else {
		add("acl-log", Whole, "%d SETNX or GETSET denied by a fence", hits)
	}
	switch {
	case q.opts.Namespace == "":
		add("members", Unused, "no --namespace")
	default:
		add("members", Part, "read at the start and at the end, epoch %d", q.cert.Epoch)
	}
	switch {
	case !q.opts.Census:
		add("census", Unused, "left out")
	default:
		add("census", Part, "%d legacy values at the start; %d of them live and unchanged at the end", len(q.before), len(held))
	}
	if len(q.burstHoles) > 0 {
		add("monitor", Broken, "%s", strings.Join(q.burstHoles, "; "))
	} else if q.bursts == 0 {
		add("monitor", Unused, "no burst")
	} else {
		add("monitor", Part, "%s, %v together: %d SETNX or GETSET on locks, %d on other keys", nouns(q.bursts, "burst"), q.burstTime.Round(time.Millisecond), q.legacyOps, q.otherOps)
	}
}

// risks says what the certificate cannot know.
func (q *inquiry) risks() {
	c := &q.cert
	window := time.Duration(c.WindowSeconds * float64(time.Second)).Round(time.Second)
	c.ResidualRisks = []string{
		fmt.Sprintf("a client that does nothing for longer than %v (a monthly job, a cold standby) was not seen", window),
		"a client that takes locks with SET NX or WATCH and SET alone sends neither SETNX nor GETSET: only the census and the bursts can see it",
		"a client that holds a lock from before the window may still send a DEL",
	}
	if c.Verdict == NoneSeen {
		c.ResidualRisks = append(c.ResidualRisks, "quiet is not proof: put up the fence, then a forgotten client fails loudly instead of entering beside a holder")
	}
	if q.opts.Longest == 0 {
		c.ResidualRisks = append(c.ResidualRisks, "it was not said how long the longest lease and the longest pause between two jobs are (--longest): the window was not checked against them")
	}
	if q.bursts == 0 {
		c.ResidualRisks = append(c.ResidualRisks, "without MONITOR bursts nobody can be named, unless a fence is up")
	}
	if len(q.before) > 0 {
		c.ResidualRisks = append(c.ResidualRisks, fmt.Sprintf("%s on the keys: modern clients wait for them for ever; lockmigrate sweep", nouns(len(q.before), "legacy value")))
	}
}
