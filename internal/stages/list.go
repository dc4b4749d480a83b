package stages

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// A key belongs to one namespace at most: with two it would have two stages. The records of two namespaces are in
// different slots, in a cluster on different servers, so no script can compare them. Therefore the keys of a
// namespace are reserved first, in one list:
//
//  1. read the list, and every record there is, on every master;
//  2. refuse when a pattern of another entry or record has a key in common with ours;
//  3. enter our patterns in the list, by a script that refuses when the list has changed since 1;
//  4. create or change the record, by a script that refuses when it comes later than claimLasts after 3;
//  5. mark the entry as done.
//
// Of two operators at once the second one fails at 3, reads again, and sees the first one's patterns at 2. A command
// that dies between 3 and 5 leaves its keys reserved; a later command for the same namespace goes on from
// there. The list serves operators only: services read their own record. A list that was lost costs nothing but
// the protection between 3 and 4, because the records themselves are read as well.

// ListKey is the list of the namespaces of a server or cluster.
const ListKey = "lockmigrate:namespaces"

const (
	claimLasts  = 10 * time.Second // for a command between reserving keys and writing the record
	claimStands = 15 * time.Second // against commands of others for the same namespace: claimLasts and clocks that differ
)

// ErrOverlap says that two namespaces would have keys in common.
var ErrOverlap = errors.New("keys of two namespaces")

// entry is what the list says of a namespace.
type entry struct {
	Patterns []string `json:"patterns,omitempty"` // reserved; none: the namespace was deleted
	At       int64    `json:"at"`                 // of the last change, in milliseconds of the server's clock
	Claim    string   `json:"claim,omitempty"`    // a random word, and who, while a command is under way
	Epoch    int64    `json:"epoch,omitempty"`    // at least the last one of a namespace that was deleted: no certificate of it fits the next one
}

// list is the whole list at one moment.
type list struct {
	word    string
	now     time.Time
	entries map[string]entry
}

func (s *Store) list(ctx context.Context) (list, error) {
	l := list{entries: map[string]entry{}}
	row, err := redis.Values(s.eval(ctx, scripts.StageList, scripts.Values{"list": ListKey}))
	if err != nil {
		return l, fmt.Errorf("read the list of namespaces: %w", err)
	}
	var now int64
	if row, err = redis.Scan(row, &now); err != nil {
		return l, err
	}
	l.now = time.UnixMilli(now)
	fields, err := redis.StringMap(row[0], nil)
	if err != nil {
		return l, err
	}
	for name, text := range fields {
		if name == "" {
			l.word = text
			continue
		}
		var e entry
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			return l, fmt.Errorf("the list of namespaces: %s: %w", name, err)
		}
		e.Patterns = UnescapeAll(e.Patterns)
		l.entries[name] = e
	}
	return l, nil
}

// write changes our entry in the list that was read; nil removes it. ErrConflict: the list is another by now.
func (s *Store) write(ctx context.Context, l list, e *entry) error {
	text := []byte{}
	if e != nil {
		packed := *e
		packed.Patterns = EscapeAll(e.Patterns)
		var err error
		if text, err = json.Marshal(packed); err != nil {
			return err
		}
	}
	reply, err := redis.Int64s(s.eval(ctx, scripts.StageClaim, scripts.Values{
		"list": ListKey, "word": l.word, "new_word": rand.Text(), "namespace": s.Namespace, "entry": text}))
	switch {
	case err != nil:
		return fmt.Errorf("change the list of namespaces: %w", err)
	case reply[0] == 0:
		return ErrConflict
	}
	return nil
}

// Listed is one namespace of a server or cluster.
type Listed struct {
	Name     string
	View     View     // of the record; its zero value where there is none
	Reserved []string // the patterns that the list reserves beside a record; none where the list does not know the namespace
	Unknown  error    // why the record cannot be read; ErrNoRecord: keys are reserved, and there is no record
}

// List returns the namespaces of every master: those of the list, and those that have a record with a
// name of its form. It reads the servers' key names once, a thousand at a time.
func (s *Store) List(ctx context.Context) ([]Listed, error) {
	l, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	return s.all(ctx, l)
}

// Names returns the namespaces of the list alone, sorted: one command. List also finds records that the list does not know.
func (s *Store) Names(ctx context.Context) ([]string, error) {
	l, err := s.list(ctx)
	return slices.Sorted(maps.Keys(l.names())), err
}

// Kept returns what the list keeps of the namespace: the patterns that are reserved for it, and the last epoch of one of this name that was deleted;
// 0: there was none.
func (s *Store) Kept(ctx context.Context) (reserved []string, deleted int64, err error) {
	l, err := s.list(ctx)
	e := l.entries[s.Namespace]
	return e.Patterns, e.Epoch, err
}

// names are the namespaces that have keys.
func (l list) names() map[string]bool {
	names := map[string]bool{}
	for name, e := range l.entries {
		if len(e.Patterns) > 0 {
			names[name] = true
		}
	}
	return names
}

// claimed tells that a command for a namespace may be under way. One that has stopped can write its record no more.
func (l list) claimed(name string) bool {
	return l.entries[name].Claim != "" && l.age(name) < claimStands
}

// age is the time since an entry was changed.
func (l list) age(name string) time.Duration {
	return max(0, l.now.Sub(time.UnixMilli(l.entries[name].At)))
}

func (s *Store) all(ctx context.Context, l list) ([]Listed, error) {
	names := l.names()
	err := s.EachKey(ctx, RecordKey("*"), func(key string) {
		if name := strings.TrimSuffix(strings.TrimPrefix(key, "lockmigrate:{"), "}:stage"); CheckName(name) == nil {
			names[name] = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("look for namespaces: %w", err)
	}
	var all []Listed
	for _, name := range slices.Sorted(maps.Keys(names)) {
		other := &Store{Pool: s.Pool, Namespace: name, ReplyTimeout: s.ReplyTimeout}
		view, err := other.Show(ctx)
		if err != nil && !errors.Is(err, ErrNoRecord) && !Unreadable(err) {
			return nil, err
		}
		one := Listed{Name: name, View: view, Reserved: l.entries[name].Patterns, Unknown: err}
		if err == nil && !l.claimed(name) { // what a stopped command has reserved beside the record: the record says what became of it
			one.Reserved = nil
		}
		if errors.Is(err, ErrNoRecord) && len(one.Reserved) == 0 {
			continue // deleted since
		}
		all = append(all, one)
	}
	return all, nil
}

// EachKey scans every master for keys that match a pattern.
func (s *Store) EachKey(ctx context.Context, pattern string, found func(key string)) (err error) {
	look := func(conn redis.Conn, err error) error {
		if err != nil {
			return err
		}
		defer conn.Close()
		return Scan(ctx, conn, pattern, s.ReplyTimeout, found)
	}
	many := topology.RouterOf(s.Pool)
	if many == nil {
		return look(s.Pool.GetContext(ctx))
	}
	masters, err := many.Masters(ctx)
	for _, addr := range masters {
		if err := look(many.DialAddr(ctx, addr)); err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
	}
	return err
}

// Scan goes through the keys of one server.
func Scan(ctx context.Context, conn redis.Conn, pattern string, timeout time.Duration, found func(key string)) error {
	for cursor := "0"; ; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		row, err := redis.Values(redis.DoWithTimeout(conn, timeout, "SCAN", cursor, "MATCH", pattern, "COUNT", 1000))
		if err != nil {
			return err
		}
		var keys []string
		if _, err := redis.Scan(row, &cursor, &keys); err != nil {
			return err
		}
		for _, key := range keys {
			found(key)
		}
		if cursor == "0" {
			return nil
		}
	}
}

// CheckOthers looks for a namespace of any master that has a key in common with these patterns. It writes nothing.
func (s *Store) CheckOthers(ctx context.Context, patterns []string) error {
	l, err := s.list(ctx)
	if err != nil {
		return err
	}
	return s.checkOthers(ctx, l, patterns)
}

func (s *Store) checkOthers(ctx context.Context, l list, patterns []string) error {
	others, err := s.all(ctx, l)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.Name == s.Namespace {
			continue
		}
		if Unreadable(other.Unknown) && len(other.Reserved) == 0 { // its keys are not known, so nobody may say that there is no overlap
			return other.Unknown
		}
		for _, theirs := range slices.Concat(other.Reserved, other.View.Record.Patterns) {
			for _, mine := range patterns {
				if _, meet := servers.Meet(mine, theirs); meet {
					return fmt.Errorf("%w: %q here, %q of namespace %s", ErrOverlap, mine, theirs, other.Name)
				}
			}
		}
	}
	return nil
}

// claim is the right to change one namespace, for a short time.
type claim struct {
	store *Store
	entry entry
	until time.Time // on the server's clock: what is to be written must be there by then
}

// reserve enters patterns in the list, beside those that are reserved for this namespace already, and the epoch of the record that is
// to go.
func (s *Store) reserve(ctx context.Context, patterns []string, epoch int64) (*claim, error) {
	if _, err := s.Show(ctx); errors.Is(err, ErrNewer) {
		return nil, err
	}
	for {
		l, err := s.list(ctx)
		if err != nil {
			return nil, err
		}
		e := l.entries[s.Namespace]
		if l.claimed(s.Namespace) {
			_, who, _ := strings.Cut(e.Claim, " ")
			return nil, fmt.Errorf("namespace %s: %w: %s, or was stopped in the middle of it: run it again in %v", s.Namespace, ErrBusy, who, whole(claimStands-l.age(s.Namespace)))
		}
		if err := s.checkOthers(ctx, l, patterns); err != nil {
			return nil, err
		}
		for _, p := range patterns {
			if !slices.Contains(e.Patterns, p) {
				e.Patterns = append(e.Patterns, p)
			}
		}
		e.At, e.Claim, e.Epoch = l.now.UnixMilli(), rand.Text()+" "+s.By, max(e.Epoch, epoch)
		switch err := s.write(ctx, l, &e); {
		case errors.Is(err, ErrConflict):
			continue // somebody else was faster: look at what is there now
		case err != nil:
			return nil, err
		}
		return &claim{s, e, l.now.Add(claimLasts)}, nil
	}
}

// done ends the claim: the entry is from now on what is given; nil removes it. A claim that was over, and that
// somebody else has, stays as it is.
func (c *claim) done(ctx context.Context, e *entry) error {
	for {
		l, err := c.store.list(ctx)
		if err != nil {
			return err
		}
		if l.entries[c.store.Namespace].Claim != c.entry.Claim {
			return nil
		}
		if e != nil {
			e.At = l.now.UnixMilli()
			if len(e.Patterns) == 0 && e.Epoch == 0 {
				e = nil
			}
		}
		if err := c.store.write(ctx, l, e); !errors.Is(err, ErrConflict) {
			return err
		}
	}
}

// end brings the entry in line with the record that stands, whatever became of the change.
func (c *claim) end(ctx context.Context) error {
	view, err := c.store.Show(ctx)
	switch {
	case errors.Is(err, ErrNoRecord):
		return c.done(ctx, &entry{Epoch: c.entry.Epoch})
	case err != nil:
		return err // the claim stands, the keys stay reserved
	}
	return c.done(ctx, &entry{Patterns: view.Record.Patterns, Epoch: c.entry.Epoch})
}

// Init reserves the keys of a namespace and creates its record. ErrExists says that there is a record already,
// ErrOverlap that another namespace has some of the keys. The record begins with its Epoch, or with one
// more than the last epoch of a deleted namespace of this name, if that is larger; with 1 at least.
func (s *Store) Init(ctx context.Context, r Record) error {
	if err := errors.Join(CheckName(s.Namespace), CheckPatterns(r.Patterns)); err != nil {
		return err
	}
	if r.Handover != nil && r.Stage == Legacy {
		r.Stage = Old
	}
	patterns, clients, err := r.stored()
	if err != nil {
		return err
	}
	what := "create namespace " + s.Namespace
	if view, err := s.Show(ctx); err == nil {
		return fmt.Errorf("%s: %w (stage %v, epoch %d)", what, ErrExists, view.Record.Stage, view.Record.Epoch)
	} else if !errors.Is(err, ErrNoRecord) {
		return err
	} else if err := view.Lost(); err != nil { // their keys stay reserved
		return fmt.Errorf("%s: %w", what, err)
	}
	_, err = s.claiming(ctx, what, r.Patterns, 0, func(c *claim) ([]Blocker, error) {
		epoch := max(r.Epoch, c.entry.Epoch+1)
		reply, err := redis.Int64s(s.eval(ctx, scripts.StageInit, s.on(scripts.Values{
			"stage": Number(r.Stage), "patterns": patterns, "clients": clients, "epoch": epoch, "not_after": c.until.UnixMilli(), "note": r.Note,
			"change": s.changing(epoch, r.Note, "created at stage %v: %s, %s", r.Stage, patterns, clients)})))
		switch {
		case err != nil:
			err = fmt.Errorf("%s: %w", what, unsure(err, true))
		case reply[0] == 0:
			err = fmt.Errorf("%s: %w (stage %v, epoch %d)", what, ErrExists, r.stage(reply[2]), reply[1])
		case reply[0] == -1:
			err = fmt.Errorf("%s: members of a record that was lost may still hold locks, for up to %v", what, time.Duration(reply[1])*time.Millisecond)
		case reply[0] == -3:
			err = fmt.Errorf("%s: an entry in %s cannot be read; remove it with HDEL if no process of that name lives, and its locks are over", what, MembersKey(s.Namespace))
		case reply[0] == -2:
			err = fmt.Errorf("%s: it took %v too long; run it again", what, time.Duration(reply[1])*time.Millisecond)
		}
		return nil, err
	})
	return err
}

// Set changes patterns, and what is known of the old clients, of a namespace that is at an epoch. The epoch grows by one, and
// members take the change over with their next report. Blockers that are returned mean that nothing was done.
// Without execute it tells what would happen.
//
// Members of two minds must not meet, so some changes are made only while there is no member: another dialect (at
// stage legacy two dialects on a key do not exclude each other), and fewer keys (a key that is given up could go to another
// namespace while a member still holds it).
func (s *Store) Set(ctx context.Context, epoch int64, from, to Record, execute bool) ([]Blocker, error) {
	what := "change namespace " + s.Namespace
	if err := CheckPatterns(to.Patterns); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	patterns, clients, err := to.stored()
	if err != nil {
		return nil, err
	}
	alone := 0
	if NeedsNobody(from, to) {
		alone = 1
	}
	values := scripts.Values{"seen": epoch, "patterns": patterns, "clients": clients, "alone": alone, "not_after": 0,
		"change": s.changing(epoch+1, to.Note, "set: %s, %s", patterns, clients)}
	if !execute {
		if err := s.CheckOthers(ctx, to.Patterns); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		return s.change(ctx, from, what, scripts.StageSet, false, values)
	}
	return s.claiming(ctx, what, to.Patterns, 0, func(c *claim) ([]Blocker, error) {
		values["not_after"] = c.until.UnixMilli()
		return s.change(ctx, from, what, scripts.StageSet, true, values)
	})
}

// claiming makes a change while patterns are reserved, and then brings the list in line.
func (s *Store) claiming(ctx context.Context, what string, patterns []string, epoch int64, change func(c *claim) ([]Blocker, error)) ([]Blocker, error) {
	c, err := s.reserve(ctx, patterns, epoch)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	blockers, err := change(c)
	if errors.Is(err, ErrUnsure) {
		return nil, err // the keys stay reserved
	}
	if endErr := c.end(ctx); err == nil && len(blockers) == 0 {
		err = Made(endErr)
	}
	return blockers, err
}

// NeedsNobody tells that a change may be made only while the namespace has no member.
func NeedsNobody(from, to Record) bool { return from.Dialect != to.Dialect || Narrows(from, to) }

// Narrows tells that a pattern is given up.
func Narrows(from, to Record) bool {
	return slices.ContainsFunc(from.Patterns, func(p string) bool { return !slices.Contains(to.Patterns, p) })
}

// Widens tells that a pattern is added.
func Widens(from, to Record) bool { return Narrows(to, from) }

// Delete removes the record and gives the keys up. Members block it until they have left or run out. Without
// execute it tells what would happen. Where there is no record, keys that a stopped command has reserved are given up.
func (s *Store) Delete(ctx context.Context, epoch int64, execute bool) ([]Blocker, error) {
	what := "delete namespace " + s.Namespace
	remove := func() ([]Blocker, error) {
		return s.change(ctx, Record{}, what, scripts.StageDelete, execute, scripts.Values{"seen": epoch})
	}
	if !execute {
		return remove()
	}
	return s.claiming(ctx, what, nil, epoch, func(c *claim) ([]Blocker, error) {
		blockers, err := remove()
		if errors.Is(err, ErrNoRecord) && len(c.entry.Patterns) > 0 {
			err = nil
		}
		return blockers, err
	})
}

// Forget removes what the list remembers of namespaces that were deleted, and the list itself when nothing else
// is in it: for those who must leave nothing behind.
func (s *Store) Forget(ctx context.Context) error {
	for {
		l, err := s.list(ctx)
		if err != nil {
			return err
		}
		if e, ok := l.entries[s.Namespace]; !ok || len(e.Patterns) > 0 || e.Claim != "" {
			return nil
		}
		if err := s.write(ctx, l, nil); !errors.Is(err, ErrConflict) {
			return err
		}
	}
}
