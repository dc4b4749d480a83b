package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
)

// mayWrite tells of a name in INFO commandstats whether what it counts may write. Before Redis 5 EXEC may count for what runs in MULTI.
func (m *master) mayWrite(name string) bool {
	return m.table.MayWrite(name) || name == "exec" && majorOf(m.last.version) < 5
}

// account takes in one interval between two looks. What MONITOR had shown by them counts where it has shown both.
func (m *master) account(a, b reading, from, to counts, watched bool) {
	for name, is := range b.stats {
		was := a.stats[name]
		if denied := is.Rejected - was.Rejected; denied > 0 && slices.Contains(fence.Taking, name) { // a trace of an old client
			m.ran(name).Denied += denied
		}
		switch run := max(0, is.Calls-was.Calls); { // a count that fell is a break
		case watched && m.table.MayWrite(name):
			m.compare(name, run, to[name].less(from[name]))
		case !watched && run > 0 && m.mayWrite(name):
			m.ran(name).Run += run
		}
	}
	for name := range to {
		if _, counted := b.stats[name]; watched && !counted {
			m.compare(name, 0, to[name].less(from[name]))
		}
	}
}

// compare takes in what the counters and MONITOR tell of one command, between the same two marks.
func (m *master) compare(name string, run int64, shown count) {
	if run == 0 && shown.lines == 0 {
		return
	}
	c := m.ran(name)
	c.Run += run
	c.Unclear += shown.unclear
	if slices.Contains(waits, name) {
		c.Watched += run
		m.waiting[name] += shown.lines - run
		c.Unmatched += max(0, -m.waiting[name])
		m.waiting[name] = max(0, m.waiting[name])
		return
	}
	if c.Unmatched += max(0, run-shown.lines); majorOf(m.last.version) >= 5 {
		c.Unmatched += max(0, shown.lines-run)
	}
	c.Watched += min(run, shown.lines)
}

// ran returns what is known of a command.
func (m *master) ran(name string) *Command {
	c := m.commands[name]
	if c == nil {
		c = &Command{Name: name}
		m.commands[name] = c
	}
	return c
}

// tallied are the commands that ran or were denied.
func (m *master) tallied() (all []Command) {
	for _, name := range slices.Sorted(maps.Keys(m.commands)) {
		all = append(all, *m.commands[name])
	}
	return all
}

// pops are commands that wait, and then take from a list or its like: none of them makes a key.
var pops = []string{"blpop", "brpop", "blmpop", "bzpopmin", "bzpopmax", "bzmpop", "xread", "xreadgroup", "wait", "waitaof"}

// waits are the commands that may wait. Servers from 7.2 on count them when their wait is over.
var waits = append([]string{"blmove", "brpoplpush"}, pops...)

// parked returns the clients whose command waits at the server, on keys that nobody saw: held back by a pause, or sent before MONITOR began.
// A pop that was sent before is expected to count later.
func (m *master) parked(ctx context.Context, begins bool) (clients []string, err error) {
	list, err := endpoint.Clients(ctx, m.conn)
	for _, c := range list {
		name := c["cmd"]
		idle, _ := strconv.ParseFloat(c["idle"], 64)
		switch {
		case !strings.Contains(c["flags"], "b"):
		case slices.Contains(pops, name):
			if begins {
				m.waiting[name]++
			}
		case slices.Contains(waits, name) && m.tap != nil && idle+1 < time.Since(m.tap.began).Seconds():
		default:
			clients = append(clients, fmt.Sprintf("%s of %s", strings.ToUpper(name), c["addr"]))
		}
	}
	return clients, err
}

// awaitParked waits for commands that were sent before MONITOR began and still wait: nobody saw their keys.
func (m *master) awaitParked(ctx context.Context) {
	for until := time.Now().Add(mostParked); ; {
		clients, _ := m.parked(ctx, false) // who may not read the list is told so at the end
		if len(clients) == 0 {
			return
		}
		if m.tap == nil || time.Now().After(until) || lifetime.Sleep(ctx, time.Second/2) != nil {
			m.breaks(fmt.Sprintf("when it began, %s waited, such as %s: nobody saw on which keys", nouns(int64(len(clients)), "command"), clients[0]))
			return
		}
	}
}

// mostParked is how long such commands are waited for. Queue workers wait for five seconds at a time, as a rule.
const mostParked = 10 * time.Second

// changesRules are the commands after which the rules may be others.
var changesRules = []string{"acl|setuser", "acl|deluser", "acl|load"}

// excludedNow asks the server which commands the rules exclude on the lock keys. What it does not tell is not excluded.
func (m *master) excludedNow(ctx context.Context) []string {
	if majorOf(m.last.version) < 7 || len(m.q.opts.Match) == 0 || len(m.q.opts.Trusted) == 0 {
		return nil
	}
	commands, err := fence.Excluded(ctx, m.conn, m.q.opts.Match, m.q.opts.Trusted, m.table.Writers(), m.table.Forms)
	if err != nil {
		return nil
	}
	return commands
}

// unchanged returns the commands that the rules excluded at the start and at the end, if nobody changed rules in
// between.
func unchanged(start, end []string, first, last reading) []string {
	for _, name := range changesRules {
		if last.stats[name] != first.stats[name] {
			return nil
		}
	}
	return slices.DeleteFunc(slices.Clone(start), func(c string) bool { return !slices.Contains(end, c) })
}
