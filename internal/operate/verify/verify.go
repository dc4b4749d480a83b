package verify

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Options of a verification.
type Options struct {
	Window    time.Duration
	Longest   time.Duration // what is said to be the longest lease, or pause between two runs of a job; 0: nothing is said
	Match     []string      // globs of the lock keys; those of the namespace's record where there is one; none: every key is a lock key
	Namespace string
	Trusted   []string      // users that are said to be the new services' own: the rules of others decide what can have run
	Look      time.Duration // between two looks at the counters; 0: a second, or a tenth of a short window
	Whole     bool          // MONITOR for the whole window

	// OnlyMembers asks whether every command that can change a lock key came from a connection of a member of the handover Namespace, whose
	// Old this server is. It looks by MONITOR for the whole window, and its run cannot be resumed.
	OnlyMembers bool
	Record      *endpoint.Endpoint `json:"-"` // where the record is; nil: here

	Ignore []int // databases that are said to be of no concern: their clients are not looked at

	Resume *Saved `json:"-"` // a run that was ended: this one goes on there, with its options

	// Save, if set, is told every few seconds what Resume needs. This call and those below come one after the other.
	Save func(Saved) `json:"-"`
	// Progress, if set, is told after each look at all masters, from within the window.
	Progress func(left time.Duration, seen int) `json:"-"`
	// Reading, if set, is told while the keys are read, at the start and at the end.
	Reading func(census.Progress) `json:"-"`
	// Warn, if set, is told once of each reason why this run cannot find that no client was seen.
	Warn func(text string) `json:"-"`
}

// inquiry is one run.
type inquiry struct {
	end     *endpoint.Endpoint
	opts    Options
	prefix  string // of this run's marks
	masters []*master
	facts   Evidence

	telling sync.Mutex // the keys are read beside the looks
	touched sync.Map   // patterns of opts.Match that a key or a command has matched

	began   time.Time     // when the window did, zero before; with Resume, when it went on
	base    time.Duration // of the window, before began
	ends    time.Time
	savedAt time.Time // the last state

	record  endpoint.LockPool // of the record; nil until it was read
	claimed map[string]string // by whom: connections that members have said are their own; with OnlyMembers

	before    map[string]value // what stood on the keys at the start
	whyBefore []string         // what was not read
}

// Run watches for the window and writes the certificate. An interrupted run has one too: inconclusive, unless a
// legacy client was seen before. An error means that the run could not begin.
func Run(ctx context.Context, end *endpoint.Endpoint, opts Options) (Certificate, error) {
	q := &inquiry{end: end, opts: opts, prefix: markPrefix + rand.Text() + "-", claimed: map[string]string{}}
	if opts.OnlyMembers {
		q.opts.Whole, q.opts.Save = true, nil
	}
	q.opts.Look = cmp.Or(q.opts.Look, min(time.Second, max(opts.Window/10, 10*time.Millisecond)))
	q.facts = Evidence{AskedSeconds: opts.Window.Seconds(), LongestSeconds: opts.Longest.Seconds(), Masters: []Master{}, Seen: []Client{}, OnlyMembers: opts.OnlyMembers, Values: Values{HeldBefore: []string{}, HeldAfter: []string{}}}
	defer func() {
		if q.record != nil {
			_ = q.record.Close()
		}
	}()
	if err := q.namespace(ctx); err != nil {
		return Certificate{}, err
	}
	if opts.Longest == 0 && opts.Window.Seconds() < q.facts.LongestSeconds {
		return Certificate{}, &endpoint.Error{
			What:   fmt.Sprintf("the window of %v is shorter than the longest silence of %v, which the record says", opts.Window, seconds(q.facts.LongestSeconds)),
			Advice: "give a longer --for", BadInput: true,
		}
	}
	q.facts.Patterns, q.facts.Trusted, q.facts.Database, q.facts.Ignored = q.opts.Match, opts.Trusted, end.DB, opts.Ignore
	if q.ignores(end.DB) {
		return Certificate{}, &endpoint.Error{What: fmt.Sprintf("database %d is the one of the locks", end.DB), Advice: "--ignore-db names another one, or name the locks' database in the URL", BadInput: true}
	}
	if err := q.sameNamespace(); err != nil {
		return Certificate{}, err
	}
	addrs, err := end.Masters(ctx)
	if err != nil {
		return Certificate{}, err
	}
	defer q.close()
	if err := q.resume(ctx, addrs); err != nil {
		return Certificate{}, err
	}
	q.watch(ctx, addrs)
	return Certify(q.facts), nil
}

// open takes the first look at each master, or one after the state of another run.
func (q *inquiry) open(ctx context.Context, addrs []string, s *Saved) error {
	for _, addr := range addrs {
		m, err := newMaster(ctx, q, addr)
		if err != nil {
			return err
		}
		q.masters = append(q.masters, m)
		if s != nil {
			m.follows(s)
		}
	}
	for _, m := range q.masters {
		if err := m.begin(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (q *inquiry) close() {
	for _, m := range q.masters {
		m.closeTap("")
		_ = m.conn.Close()
	}
	q.masters = nil
}

// found takes in whom the masters have seen.
func (q *inquiry) found(e *Evidence) {
	for _, m := range q.masters {
		legacy, others := m.found()
		sees(&e.Seen, legacy...)
		sees(&e.Unexplained, others...)
	}
}

// each has all masters do something at once.
func (q *inquiry) each(do func(m *master)) {
	var group sync.WaitGroup
	for _, m := range q.masters {
		group.Go(func() { do(m) })
	}
	group.Wait()
}

// look looks at all masters again and again until the window is over. It begins when the counters have been looked at, and then the keys: what
// is taken away from then on has been seen, and what is written from then on is counted.
func (q *inquiry) look(ctx context.Context) {
	read := make(chan struct{})
	go func() {
		defer close(read)
		if q.before == nil && !q.opts.OnlyMembers { // else they are of the run that this one goes on with
			q.before, _, q.whyBefore = q.values(ctx)
		}
	}()
	begins := read
	for ctx.Err() == nil && (begins != nil || time.Now().Before(q.ends)) {
		at, pause := time.Now(), q.opts.Look
		q.each(func(m *master) { m.lookAgain(ctx) })
		for _, m := range q.masters {
			m.warnUnwatched()
		}
		if q.opts.OnlyMembers { // members come and go
			_, _ = q.claims(ctx) // of one that fails the next one tells, and the last one must not fail
		}
		if begins == nil {
			q.tell()
			q.save(at)
			pause = min(pause, time.Until(q.ends))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		case <-begins:
			begins = nil
			q.begin()
			q.warnOfValues(q.before)
		}
	}
	<-read
	if q.began.IsZero() { // interrupted
		q.begin()
	}
}

// watch looks until the window is over, and then for the last time.
func (q *inquiry) watch(ctx context.Context, addrs []string) {
	q.look(ctx)
	q.facts.Finished = ctx.Err() == nil

	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastMoment)
	defer cancel()
	if q.facts.Finished {
		last = ctx
		if !q.opts.OnlyMembers {
			q.lastValues(ctx, q.before, q.whyBefore)
		}
	} else {
		q.facts.Values.Why = []string{"the run was interrupted"}
	}
	q.facts.Ended = time.Now().UTC()
	q.facts.LookedSeconds = (q.base + time.Since(q.began)).Seconds()
	q.each(func(m *master) { m.finish(last) })
	if q.opts.OnlyMembers {
		q.lastClaims(last)
	}
	q.found(&q.facts)
	for _, m := range q.masters {
		q.facts.Masters = append(q.facts.Masters, m.facts)
	}
	q.facts.Matched = q.matched()
	if q.facts.Finished {
		err := cmp.Or(q.end.StillMasters(last, addrs), q.end.Quorum(last))
		if q.facts.MastersSame = err == nil; err != nil {
			q.facts.MastersWhy = err.Error()
		}
		q.lastNamespace(last)
		q.facts.Finished = ctx.Err() == nil // it may have come to an end within the last looks
	}
}

// begin begins the window, or goes on with it.
func (q *inquiry) begin() {
	q.began = time.Now()
	q.ends = q.began.Add(q.opts.Window - q.base)
	if q.facts.Started.IsZero() {
		q.facts.Started = q.began.UTC()
	}
}

// lastMoment is how long an interrupted run may take for its last looks.
const lastMoment = 700 * time.Millisecond

func (q *inquiry) lastValues(ctx context.Context, before map[string]value, whyBefore []string) {
	v := &q.facts.Values
	*v = Values{StartWhole: len(whyBefore) == 0, Before: len(before), HeldBefore: []string{}, HeldAfter: []string{}, Why: whyBefore}
	after, now, why := q.values(ctx)
	v.EndWhole = len(why) == 0
	for _, w := range why {
		if !slices.Contains(v.Why, w) {
			v.Why = append(v.Why, w)
		}
	}
	if !v.StartWhole || !v.EndWhole { // what is not in both may have stood there all the time
		return
	}
	var seen []Client
	v.HeldBefore, v.HeldAfter, seen = compareValues(before, after, now)
	if slices.ContainsFunc(q.masters, func(m *master) bool { return m.moves(ctx) != m.facts.Moves }) {
		return // what was not here may have stood on another node: the obligation of the counters is open
	}
	v.Changed = len(seen)
	sees(&q.facts.Seen, seen...)
}

// matches tells whether a key is a lock key. It notes by which pattern.
func (q *inquiry) matches(key string) (yes bool) {
	for _, p := range q.opts.Match {
		if servers.MatchAny([]string{p}, key) {
			q.touched.Store(p, true)
			yes = true
		}
	}
	return yes || len(q.opts.Match) == 0
}

// matched are the patterns that some key or command has matched.
func (q *inquiry) matched() (patterns []string) {
	for _, p := range q.opts.Match {
		if _, yes := q.touched.Load(p); yes {
			patterns = append(patterns, p)
		}
	}
	return patterns
}

// ignores tells a database that was said to be of no concern.
func (q *inquiry) ignores(db int) bool { return slices.Contains(q.opts.Ignore, db) }

// sees notes clients, each once.
func sees(list *[]Client, clients ...Client) {
	for _, c := range clients {
		same := func(o Client) bool {
			return o.Addr == c.Addr && o.User == c.User && o.Evidence == c.Evidence && slices.Equal(o.Keys, c.Keys)
		}
		if len(*list) < mostTraces && !slices.ContainsFunc(*list, same) {
			*list = append(*list, c)
		}
	}
}

// show reads the namespace's record.
func (q *inquiry) show(ctx context.Context) (_ stages.View, err error) {
	if q.record == nil {
		if q.record, err = cmp.Or(q.opts.Record, q.end).Locks(); err != nil { // in a cluster the record is on one master
			return stages.View{}, err
		}
	}
	store := stages.Store{Pool: q.record, Namespace: q.opts.Namespace, ReplyTimeout: 5 * time.Second}
	return store.Show(ctx)
}

// namespace reads the record at the start: its patterns, and who runs stage legacy.
func (q *inquiry) namespace(ctx context.Context) error {
	if q.opts.Namespace == "" {
		return nil
	}
	view, err := q.show(ctx)
	if err != nil {
		return endpoint.Explain(err)
	}
	r := view.Record
	if longest := q.opts.Longest; longest > 0 && longest < r.Silence() {
		return &endpoint.Error{
			What:   fmt.Sprintf("the longest silence of %v is less than the %v that the record knows of", longest, r.Silence()),
			Advice: "say with --longest-silence how long an old client may be silent: no step would rest on this certificate", BadInput: true,
		}
	}
	if q.opts.Longest == 0 {
		q.facts.LongestSeconds = r.Longest.Seconds()
	}
	q.facts.Namespace = &Namespace{Name: q.opts.Namespace, Epoch: r.Epoch, Since: r.Since.UTC(), Patterns: r.Patterns, Longest: r.Longest.Seconds()}
	if len(q.opts.Match) == 0 {
		q.opts.Match = r.Patterns
	}
	q.members(view)
	return q.ofHandover(ctx, r)
}

// lastNamespace reads it again at the end.
func (q *inquiry) lastNamespace(ctx context.Context) {
	n := q.facts.Namespace
	if n == nil {
		return
	}
	n.Living = 0
	view, err := q.show(ctx)
	if err != nil {
		return
	}
	r := view.Record
	n.Same = r.Epoch == n.Epoch && r.Since.Equal(n.Since) && slices.Equal(r.Patterns, n.Patterns)
	q.members(view)
}

// members notes those that run stage legacy, and how many still report.
func (q *inquiry) members(view stages.View) {
	legacy := 0
	q.facts.Namespace.Living = len(view.Living())
	for _, m := range view.Members {
		if view.Record.Handover == nil && (m.Lowest == stages.Legacy || m.Stage == stages.Legacy) {
			legacy++
			sees(&q.facts.Seen, Client{Addr: m.Info.Host, Name: m.ID, Evidence: "a member of the namespace that runs stage legacy, or holds a lock of it"})
		}
	}
	q.facts.Namespace.Legacy = max(q.facts.Namespace.Legacy, legacy)
}

// tell reports progress.
func (q *inquiry) tell() {
	seen := 0
	for _, m := range q.masters {
		seen += len(m.acts)
	}
	if q.opts.Progress != nil {
		q.opts.Progress(time.Until(q.ends), seen)
	}
}

// warnOfValues says at the start that a value stands in the way. The run goes on: it may name who wrote it.
func (q *inquiry) warnOfValues(before map[string]value) {
	held := 0
	for _, v := range before {
		if v.Held {
			held++
		}
	}
	if held > 0 {
		q.warn(fmt.Sprintf("%s on the lock keys may be held: this run can name legacy clients, but cannot end with none-seen", nouns(int64(held), "value")))
	}
}

func (q *inquiry) warn(text string) { says(q, q.opts.Warn, text) }

// says tells something to whoever is set.
func says[T any](q *inquiry, whom func(T), what T) {
	if whom != nil {
		q.telling.Lock()
		defer q.telling.Unlock()
		whom(what)
	}
}
