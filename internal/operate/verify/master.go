package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// master looks at one master over the window: at its counters again and again, at ACL LOG, and at its traffic
// where MONITOR is on.
//
// Each look sends an ECHO and an INFO. MONITOR shows both, so the INFO is a mark in the stream: what MONITOR
// showed before the mark is exactly what INFO has counted. Between two marks of one stream the counters and
// MONITOR therefore speak of the same commands. Where the stream has a gap, the counters still say whether
// anything ran in it.
type master struct {
	q     *inquiry
	end   *endpoint.Endpoint
	addr  string
	conn  redis.Conn
	log   *fence.Log
	facts Master

	sent  int // looks, for the marks
	last  reading
	shown counts // what MONITOR had shown by the last look
	by    *tap   // which has shown that, nil for none
	tap   *tap   // nil while MONITOR is off
	retry time.Time
	pause time.Duration // before MONITOR is tried again
	hot   time.Time     // since when the load is too high, zero while it is not

	denied []Client // whom ACL LOG named
	ruled  []string // what the rules excluded at the start
	first  reading
	warned bool

	adrift []unlisted

	acts map[from]*deeds // on lock keys, as MONITOR showed them: what nothing explains; with OnlyMembers all
	seen int64           // how many commands they are

	table    traffic.Table
	commands map[string]*Command
	waiting  map[string]int64 // by how much MONITOR is ahead of the counters: a command that waits may count when its wait is over
}

const (
	mostTraces = 1000 // clients that are remembered
	mostKeys   = 10   // of each
	mostBreaks = 10
)

func newMaster(ctx context.Context, q *inquiry, addr string) (*master, error) {
	conn, err := q.end.DialAddr(ctx, addr)
	if err != nil {
		return nil, err
	}
	m := &master{
		q: q, end: q.end, addr: addr, conn: conn, log: &fence.Log{}, acts: map[from]*deeds{}, commands: map[string]*Command{}, waiting: map[string]int64{},
		facts: Master{Addr: addr, CountsDenied: true, LogRead: true},
	}
	if m.table, err = traffic.ReadTable(ctx, conn); err != nil {
		m.facts.TableWhy, m.warned = err.Error(), true
		q.warn(fmt.Sprintf("%s: which commands write is not known, so this run cannot end with none-seen: grant +command: %v", addr, err))
	}
	m.facts.Writes = len(m.table.Writers())
	m.facts.Named, m.facts.NamedWhy = m.named(ctx)
	// Rare commands that are sent once. A reset of the counters takes their count away.
	_, _ = redis.DoContext(conn, ctx, "OBJECT", "HELP")
	_, _ = redis.DoContext(conn, ctx, "COMMAND", "COUNT")
	return m, nil
}

// begin takes the first look.
func (m *master) begin(ctx context.Context) error {
	if m.q.opts.Whole {
		m.open(ctx)
	}
	if err := m.look(ctx); err != nil {
		return err
	}
	r := m.last
	m.facts.RunID, m.facts.Version, m.facts.Is = r.runID, r.version, r.is
	switch {
	case r.role == "slave":
		m.facts.Partial = "it is a replica: nobody takes a lock there"
	case r.cluster && m.end.Kind != endpoint.Cluster:
		m.facts.Partial = "it is one node of a cluster, and the others were not looked at: write redis+cluster://"
	}
	if r.stats[canary].Calls < 1 {
		m.breaks("INFO does not count our own ECHO: this server has no commandstats")
	}
	m.awaitParked(ctx)
	if m.first.text != "" { // of a run that this one follows
		m.slotsStayed(ctx)
	} else if m.first, m.ruled, m.facts.Moves = m.last, m.excludedNow(ctx), m.moves(ctx); m.facts.Moves == "" {
		m.q.warn(m.addr + ": " + movesUnknown)
	}
	if major := majorOf(r.version); major == 6 {
		pair, err := redis.Strings(redis.DoContext(m.conn, ctx, "CONFIG", "GET", "acllog-max-len"))
		if err == nil && len(pair) == 2 {
			m.facts.LogLength, _ = redis.Int64([]byte(pair[1]), nil)
		}
	}
	return nil
}

// moves is what changes when a slot moves: a node may join, run commands of old clients, and leave between two lists of the masters. A
// new owner of a slot takes a new epoch, unless it has the newest one already or the slot had no owner. The count of the commands that change
// owners tells of these (7.0); in 6.2 ASK tells of slots that were only offered. It is empty if that is not known.
func (m *master) moves(ctx context.Context) string {
	if m.end.Kind != endpoint.Cluster {
		return "no cluster"
	}
	info, err := redis.String(redis.DoContext(m.conn, ctx, "CLUSTER", "INFO"))
	epoch := endpoint.InfoOf(info)["cluster_current_epoch"]
	if err != nil || epoch == "" {
		return ""
	}
	return fmt.Sprintf("epoch %s, %d moves, %d ASK", epoch, m.last.slotCommands(), m.last.errors["ASK"])
}

// named tells that SETNX and GETSET exist under these names, or why that is not known.
func (m *master) named(ctx context.Context) (yes bool, why string) {
	reply, err := redis.Values(redis.DoContext(m.conn, ctx, "COMMAND", "INFO", "setnx", "getset"))
	if err != nil {
		return false, "COMMAND INFO is refused, so it is not known whether SETNX and GETSET have their names: " + endOf(err)
	}
	return len(reply) == 2 && reply[0] != nil && reply[1] != nil, ""
}

func (m *master) breaks(why string) {
	if len(m.facts.Breaks) < mostBreaks && !slices.Contains(m.facts.Breaks, why) {
		m.facts.Breaks = append(m.facts.Breaks, why)
	}
}

// look takes a reading of the counters, and polls ACL LOG. A look that fails costs nothing but a longer
// interval, unless it is the last.
func (m *master) look(ctx context.Context) error {
	now, err := m.read(ctx)
	if err != nil && ctx.Err() == nil && m.reconnect(ctx) == nil {
		now, err = m.read(ctx)
	}
	var counts counts
	var by *tap
	if err == nil {
		counts, by, err = m.awaitMark(ctx, now.mark)
	}
	m.facts.Ended = err == nil
	if err != nil {
		return err
	}
	m.attribute(now.clients)
	if m.facts.Looks > 0 {
		m.account(m.last, now, m.shown, counts, by != nil && by == m.by)
		if why := broken(m.last, now); why != "" {
			m.breaks(why)
		}
		m.facts.Canary += max(0, now.stats[canary].Calls-m.last.stats[canary].Calls)
		redirected, others := refused(m.last, now)
		m.facts.Redirected += redirected
		m.facts.Refused += others
		m.watchLoad(now)
	}
	m.facts.Looks++
	m.facts.CountsDenied = m.facts.CountsDenied && now.rejects
	if now.refuses != "" {
		m.facts.Refuses = now.refuses
	}
	m.last, m.shown, m.by = now, counts, by
	m.poll(ctx)
	return nil
}

// awaitMark waits until MONITOR has shown a look, and takes in what it has shown by then. A MONITOR that does not show it ends.
func (m *master) awaitMark(ctx context.Context, mark string) (shown counts, by *tap, err error) {
	if m.tap == nil {
		return nil, nil, nil
	}
	shown, acts, err := m.tap.await(ctx, mark)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, nil, err
	default:
		m.closeTap("MONITOR ended: " + endOf(err))
		return nil, nil, nil
	}
	m.hear(ctx, acts)
	return shown, m.tap, nil
}

// read lists the clients, with OnlyMembers, right before it sends a new mark and reads INFO.
func (m *master) read(ctx context.Context) (reading, error) {
	var clients map[string]listed
	if m.q.opts.OnlyMembers {
		clients = m.list(ctx)
	}
	m.sent++
	mark := fmt.Sprint(m.q.prefix, m.sent)
	if _, err := redis.DoContext(m.conn, ctx, "ECHO", mark); err != nil {
		if _, refused := err.(redis.Error); !refused { // a refusal shows as a canary that does not rise
			return reading{}, err
		}
	}
	text, err := redis.String(redis.DoContext(m.conn, ctx, "INFO", "all"))
	if err != nil {
		return reading{}, endpoint.Explain(err)
	}
	r := readInfo(text)
	r.mark, r.clients = mark, clients
	if !r.limited && r.refuses == "" {
		limit, err1 := redis.Strings(redis.DoContext(m.conn, ctx, "CONFIG", "GET", "maxmemory"))
		policy, err2 := redis.Strings(redis.DoContext(m.conn, ctx, "CONFIG", "GET", "maxmemory-policy"))
		r.refuses = fullMemory(r.used, limit, policy, errors.Join(err1, err2))
	}
	if r.runID == "" {
		return r, &endpoint.Error{What: "INFO of " + m.addr + " does not tell its run id", Advice: "grant +info; a proxy in between makes the counters worthless"}
	}
	return r, nil
}

func (m *master) reconnect(ctx context.Context) error {
	conn, err := m.end.DialAddr(ctx, m.addr)
	if err == nil {
		_ = m.conn.Close()
		m.conn = conn
	}
	return err
}

// warnUnwatched says as soon as it is so that commands have run which nobody can account for any more.
func (m *master) warnUnwatched() {
	for _, c := range m.tallied() {
		if c.Unwatched() > 0 && !m.warned && !slices.Contains(m.ruled, c.Name) {
			m.warned = true
			m.q.warn(fmt.Sprintf("%s: %s ran while MONITOR was off: this run can name legacy clients, but cannot end with none-seen; --monitor watches the whole window", m.addr, strings.ToUpper(c.Name)))
		}
	}
}

// open begins to watch the traffic. Where that is refused it is tried again, ever less often.
func (m *master) open(ctx context.Context) {
	if time.Now().Before(m.retry) {
		return
	}
	tap, err := openTap(ctx, m.end, m.addr, reader{table: m.table, matches: m.q.matches, ignores: m.q.ignores, prefix: m.q.prefix, anybody: m.q.opts.OnlyMembers})
	if err == nil {
		m.tap, m.pause = tap, 0
		clear(m.waiting)
		_, _ = m.parked(ctx, true)
		return
	}
	if ctx.Err() == nil {
		m.watchBreaks("MONITOR could not begin: " + err.Error())
	}
	m.pause = min(max(2*m.pause, time.Second), time.Minute)
	m.retry = time.Now().Add(m.pause)
}

func (m *master) watchBreaks(why string) {
	if why = m.addr + ": " + why; len(m.facts.WatchBreaks) < mostBreaks && !slices.Contains(m.facts.WatchBreaks, why) {
		m.facts.WatchBreaks = append(m.facts.WatchBreaks, why)
	}
}

// closeTap ends MONITOR. Why is empty where that was meant.
func (m *master) closeTap(why string) {
	if m.tap == nil {
		return
	}
	m.tap.close()
	if why != "" || !m.q.opts.OnlyMembers { // else what came after the last look is nobody's matter
		m.hear(context.Background(), m.tap.rest())
	}
	m.tap = nil
	if why != "" {
		m.watchBreaks(why)
		m.retry = time.Now().Add(time.Second)
	}
}

func endOf(err error) string {
	if explained := endpoint.Explain(err); explained != nil {
		return explained.Error()
	}
	return "the connection broke"
}

const (
	mostLoad  = 0.9             // share of a core that the server's main thread may use while MONITOR is on
	hotFor    = 3 * time.Second // for so long, before MONITOR ends
	coolPause = time.Minute     // until it is tried again
)

// watchLoad ends MONITOR where the server is too busy for it.
func (m *master) watchLoad(now reading) {
	took := now.at.Sub(m.last.at).Seconds()
	if m.tap == nil || took <= 0 || (now.cpu-m.last.cpu)/took < mostLoad {
		m.hot = time.Time{}
		return
	}
	if m.hot.IsZero() {
		m.hot = m.last.at
	}
	if now.at.Sub(m.hot) >= hotFor {
		m.closeTap(fmt.Sprintf("MONITOR ended: the server's main thread used more than %.0f %% of a core", 100*mostLoad))
		m.retry, m.hot = time.Now().Add(coolPause), time.Time{}
	}
}

// lookAgain looks within the run. The next look covers the time of one that fails.
func (m *master) lookAgain(ctx context.Context) {
	if m.q.opts.Whole && m.tap == nil {
		m.open(ctx)
	}
	_ = m.look(ctx)
}

// finish takes the last look.
func (m *master) finish(ctx context.Context) {
	ruled := m.excludedNow(ctx)
	// Before Redis 6.2 a pause holds up our own commands too: what waited beside the ECHO has run before INFO is sent.
	if err := m.look(ctx); err != nil && !errors.Is(err, context.Canceled) {
		m.breaks("it could not be read at the end: " + endOf(err))
	}
	m.slotsStayed(ctx)
	switch clients, err := m.parked(ctx, false); {
	case err != nil:
		m.breaks("it is not known whether it holds commands back: grant +client|list: " + endOf(err))
	case len(clients) > 0:
		m.breaks(fmt.Sprintf("commands wait at the server that may still take a lock: %s, such as %s", nouns(int64(len(clients)), "client"), clients[0]))
	}
	m.closeTap("")
	m.facts = m.soFar(unchanged(m.ruled, ruled, m.first, m.last))
}

// slotsStayed breaks the counters where slots may have moved since the start.
func (m *master) slotsStayed(ctx context.Context) {
	if now := m.moves(ctx); now != m.facts.Moves {
		m.breaks(fmt.Sprintf("slots may have moved, to a node that was not looked at: CLUSTER INFO and the counters told %q at the start and %q since", m.facts.Moves, now))
	}
}

// soFar are the facts with the commands that are accounted for, and those of them that the rules exclude.
func (m *master) soFar(ruled []string) Master {
	facts := m.facts
	facts.Commands, facts.Ruled = m.tallied(), ruled
	return facts
}
