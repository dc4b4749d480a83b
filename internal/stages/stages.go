// Package stages keeps the stage of a namespace in Redis: which keys, which dialect, which stage, and
// which members run it.
//
// Every change is one script, so whoever crashes, and whenever, leaves either the state before or the
// state after it; both are legal. What makes a state legal is argued where it is enforced, in
// stage_move.lua and stage_join.lua.
package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// Stage is one of the three ways to hold a key that a fleet goes through.
type Stage int

const (
	Legacy Stage = iota
	Bridge
	Modern
)

var names = []string{"legacy", "bridge", "modern"}

// String returns the stage's name.
func (s Stage) String() string {
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("stage(%d)", int(s))
	}
	return names[s]
}

// Valid tells that there is such a stage.
func (s Stage) Valid() bool { return s >= Legacy && s <= Modern }

// Parse finds a stage by its name.
func Parse(name string) (Stage, error) {
	for i, n := range names {
		if n == name {
			return Stage(i), nil
		}
	}
	return 0, fmt.Errorf("no stage is named %q; they are %s", name, strings.Join(names, ", "))
}

// Record is what a namespace is.
type Record struct {
	Namespace string
	Stage     Stage
	Epoch     int64 // grows by one with every change of the stage
	Since     time.Time
	Patterns  []string // of the keys, as Redis matches them; see Covers
	Dialect   string
	Shortest  time.Duration // the shortest lease of any legacy client
	Note      string        // what the last change of stage rests on: a certificate, or why it was forced
}

// Covers tells that a key belongs to the namespace. In a pattern * stands for any text, ? for one
// character.
func (r Record) Covers(key string) bool {
	for _, p := range r.Patterns {
		if Match(p, key) {
			return true
		}
	}
	return false
}

// Match tells whether a pattern, of which only * and ? are special, matches a key.
func Match(pattern, key string) bool {
	for {
		star := strings.IndexByte(pattern, '*')
		if star < 0 {
			return len(pattern) == len(key) && same(pattern, key)
		}
		if len(key) < star || !same(pattern[:star], key[:star]) {
			return false
		}
		pattern, key = pattern[star+1:], key[star:]
		if pattern == "" {
			return true
		}
		// The first place where the text up to the next star fits is as good as any later one, except
		// for the last text, which must end the key.
		next := strings.IndexByte(pattern, '*')
		if next < 0 {
			return len(key) >= len(pattern) && same(pattern, key[len(key)-len(pattern):])
		}
		for !(len(key) >= next && same(pattern[:next], key[:next])) {
			if len(key) < next || key == "" {
				return false
			}
			key = key[1:]
		}
	}
}

func same(pattern, text string) bool {
	for i := range len(pattern) {
		if pattern[i] != '?' && pattern[i] != text[i] {
			return false
		}
	}
	return true
}

// Info is what a member says of itself, for people.
type Info struct {
	Host    string `json:"host"`
	Process int    `json:"pid"`
	Version string `json:"version"`
}

// Member is one process of the fleet as the record knows it.
type Member struct {
	ID      string
	Info    Info
	Epoch   int64 // that it runs; -1 before it has run any
	Stage   Stage // the same
	Lowest  Stage // of the stages that it may run or hold locks of
	Highest Stage
	Seen    time.Duration // since its last report
	Left    time.Duration // of its lease; negative: it is silent
	Longest time.Duration // for how long a lock of it can outlive its last renewal
	Skew    time.Duration // of its clock, positive when ahead of the server's
}

// View is a namespace at one moment.
type View struct {
	Record  Record
	Members []Member
	Now     time.Time // on the server's clock
}

// Blocker is a member that stands in the way of a move.
type Blocker struct {
	Member string
	Why    string        // behind, silent or holds
	Wait   time.Duration // until it has run out; negative while it lives
	Stage  Stage         // that it runs, or the stage of what it holds
}

// String says who blocks and what will end it.
func (b Blocker) String() string {
	switch b.Why {
	case "behind":
		return fmt.Sprintf("%s lives and does not run the current epoch yet", b.Member)
	case "silent":
		return fmt.Sprintf("%s is silent; what it may hold has run out in %v", b.Member, b.Wait)
	default:
		if b.Wait >= 0 {
			return fmt.Sprintf("%s is silent and may hold a lock of stage %s for another %v", b.Member, b.Stage, b.Wait)
		}
		return fmt.Sprintf("%s runs, or holds a lock of, stage %s", b.Member, b.Stage)
	}
}

// What a Store finds.
var (
	ErrNoRecord = errors.New("there is no such namespace")
	ErrExists   = errors.New("the namespace exists already")
	ErrConflict = errors.New("the stage has been changed by somebody else")
)

// Store reads and changes one namespace.
type Store struct {
	Pool         lockmigrate.Pool
	Namespace    string
	ReplyTimeout time.Duration
}

// CheckName tells whether a namespace can have this name.
func CheckName(name string) error {
	if name == "" || len(name) > 100 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-") != "" {
		return fmt.Errorf("a namespace's name is up to 100 letters, digits and any of . _ : - (not %q)", name)
	}
	return nil
}

// CheckPatterns tells whether patterns can describe a namespace's keys.
func CheckPatterns(patterns []string) error {
	if len(patterns) == 0 {
		return errors.New("a namespace needs at least one key pattern")
	}
	for _, p := range patterns {
		if p == "" || strings.ContainsAny(p, `[]\`) {
			return fmt.Errorf("pattern %q: only * and ? are special, and it must not be empty", p)
		}
		if strings.Trim(p, "*?") == "" {
			return fmt.Errorf("pattern %q covers every key of the server", p)
		}
		if Match(p, RecordKey("any")) || strings.HasPrefix(p, "lockmigrate:") {
			return fmt.Errorf("pattern %q covers the keys of the namespaces themselves", p)
		}
	}
	return nil
}

// RecordKey returns the name of a namespace's record.
func RecordKey(namespace string) string { return "lockmigrate:{" + namespace + "}:stage" }

// MembersKey returns the name of the hash of a namespace's members.
func MembersKey(namespace string) string { return "lockmigrate:{" + namespace + "}:members" }

// Init creates the record. ErrExists comes with a record that is there already.
func (s *Store) Init(ctx context.Context, r Record) error {
	patterns, err := json.Marshal(r.Patterns)
	if err != nil {
		return err
	}
	reply, err := redis.Int64s(s.eval(ctx, scripts.StageInit, RecordKey(s.Namespace), MembersKey(s.Namespace),
		int(r.Stage), patterns, r.Dialect, r.Shortest.Milliseconds()))
	switch {
	case err != nil:
		return fmt.Errorf("create namespace %s: %w", s.Namespace, err)
	case reply[0] == 0:
		return fmt.Errorf("create namespace %s: %w (stage %v, epoch %d)", s.Namespace, ErrExists, Stage(reply[2]), reply[1])
	case reply[0] < 0:
		return fmt.Errorf("create namespace %s: members of a record that was lost may still hold locks, for up to %v",
			s.Namespace, time.Duration(reply[1])*time.Millisecond)
	}
	return nil
}

// Report is what a member tells with each refresh of its lease.
type Report struct {
	ID      string
	Seq     int64
	Lease   time.Duration
	Epoch   int64 // -1: runs none yet
	Stage   Stage // -1: runs none yet
	Lowest  Stage // of its locks and attempts under way; -1: there are none
	Highest Stage
	Longest time.Duration
	Skew    time.Duration
	Info    Info
}

// Order is what a member is told.
type Order struct {
	Record
	Now  time.Time // on the server's clock
	Ends time.Time // of the lease, on the server's clock
}

// Join reports and returns the order that stands.
func (s *Store) Join(ctx context.Context, r Report) (Order, error) {
	info, err := json.Marshal(r.Info)
	if err != nil {
		return Order{}, err
	}
	row, err := redis.Values(s.eval(ctx, scripts.StageJoin, RecordKey(s.Namespace), MembersKey(s.Namespace),
		r.ID, r.Seq, r.Lease.Milliseconds(), r.Epoch, int(r.Stage), int(r.Lowest), int(r.Highest),
		r.Longest.Milliseconds(), r.Skew.Milliseconds(), info))
	if err != nil {
		return Order{}, fmt.Errorf("report to namespace %s: %w", s.Namespace, err)
	}
	var code int64
	if row, err = redis.Scan(row, &code); err != nil {
		return Order{}, err
	}
	switch code {
	case 0:
		return Order{}, fmt.Errorf("namespace %s: %w", s.Namespace, ErrNoRecord)
	case -1:
		return Order{}, fmt.Errorf("namespace %s: a later report of %s has arrived before this one", s.Namespace, r.ID)
	}
	var now, ends, epoch, stage, shortest int64
	var patterns, dialect string
	if _, err := redis.Scan(row, &now, &ends, &epoch, &stage, &patterns, &dialect, &shortest); err != nil {
		return Order{}, err
	}
	record, err := s.record(epoch, stage, 0, patterns, dialect, shortest)
	return Order{Record: record, Now: time.UnixMilli(now), Ends: time.UnixMilli(ends)}, err
}

// Leave takes a member that holds nothing off the record.
func (s *Store) Leave(ctx context.Context, id string, seq int64) error {
	_, err := s.eval(ctx, scripts.StageLeave, MembersKey(s.Namespace), id, seq)
	return err
}

// Move changes the stage to a neighbour, if the epoch is still the one given and nobody blocks it.
// Without execute it tells what would happen. Blockers that are returned mean that nothing was done;
// ErrConflict that the epoch is another.
func (s *Store) Move(ctx context.Context, epoch int64, to Stage, execute bool) ([]Blocker, error) {
	return s.move(ctx, epoch, to, execute, "")
}

func (s *Store) move(ctx context.Context, epoch int64, to Stage, execute bool, note string) ([]Blocker, error) {
	flag := 0
	if execute {
		flag = 1
	}
	row, err := redis.Values(s.eval(ctx, scripts.StageMove, RecordKey(s.Namespace), MembersKey(s.Namespace), epoch, int(to), flag, note))
	if err != nil {
		return nil, fmt.Errorf("move namespace %s to %v: %w", s.Namespace, to, err)
	}
	var code, found, stage int64
	if row, err = redis.Scan(row, &code, &found, &stage); err != nil {
		return nil, err
	}
	switch code {
	case 1:
		return nil, nil
	case -1:
		return nil, fmt.Errorf("move namespace %s to %v: %w: it is %v, epoch %d", s.Namespace, to, ErrConflict, Stage(stage), found)
	case -2:
		return nil, fmt.Errorf("move namespace %s to %v: %w", s.Namespace, to, ErrNoRecord)
	}
	var blockers []Blocker
	for len(row) > 0 {
		var b Blocker
		var wait, stage int64
		if row, err = redis.Scan(row, &b.Member, &b.Why, &wait, &stage); err != nil {
			return nil, err
		}
		b.Wait, b.Stage = time.Duration(wait)*time.Millisecond, Stage(stage)
		blockers = append(blockers, b)
	}
	return blockers, nil
}

// Show reads the namespace.
func (s *Store) Show(ctx context.Context) (View, error) {
	row, err := redis.Values(s.eval(ctx, scripts.StageShow, RecordKey(s.Namespace), MembersKey(s.Namespace)))
	if err != nil || len(row) != 3 {
		return View{}, fmt.Errorf("read namespace %s: %w", s.Namespace, err)
	}
	ms, err := redis.Int64(row[0], nil)
	if err != nil {
		return View{}, err
	}
	now := time.UnixMilli(ms)
	fields, err := redis.StringMap(row[1], nil)
	if err != nil {
		return View{}, err
	}
	if fields["epoch"] == "" {
		return View{}, fmt.Errorf("namespace %s: %w", s.Namespace, ErrNoRecord)
	}
	var epoch, stage, since, shortest int64
	for name, into := range map[string]*int64{"epoch": &epoch, "stage": &stage, "since": &since, "shortest_ms": &shortest} {
		if _, err := fmt.Sscan(fields[name], into); err != nil {
			return View{}, fmt.Errorf("namespace %s: field %s: %w", s.Namespace, name, err)
		}
	}
	view := View{Now: now}
	if view.Record, err = s.record(epoch, stage, since, fields["patterns"], fields["dialect"], shortest); err != nil {
		return View{}, err
	}
	view.Record.Note = fields["note"]
	members, err := redis.StringMap(row[2], nil)
	if err != nil {
		return View{}, err
	}
	for id, text := range members {
		m, gone, err := member(id, text, now)
		if err != nil {
			return View{}, fmt.Errorf("namespace %s: member %s: %w", s.Namespace, id, err)
		}
		if !gone {
			view.Members = append(view.Members, m)
		}
	}
	sort.Slice(view.Members, func(i, j int) bool { return view.Members[i].ID < view.Members[j].ID })
	return view, nil
}

// Slack is what stage_shared.lua adds to a silent member's time.
const Slack = time.Second

func member(id, text string, now time.Time) (m Member, gone bool, err error) {
	var entry struct {
		Epoch, Stage, Lo, Hi, Seen, Ends, Longest, Skew float64
		Info                                            string
	}
	if err := json.Unmarshal([]byte(text), &entry); err != nil {
		return Member{}, false, err
	}
	ms := func(f float64) time.Duration { return time.Duration(f) * time.Millisecond }
	at := func(f float64) time.Time { return time.UnixMilli(int64(f)) }
	m = Member{
		ID: id, Epoch: int64(entry.Epoch), Stage: Stage(entry.Stage), Lowest: Stage(entry.Lo), Highest: Stage(entry.Hi),
		Seen: now.Sub(at(entry.Seen)), Left: at(entry.Ends).Sub(now), Longest: ms(entry.Longest), Skew: ms(entry.Skew),
	}
	_ = json.Unmarshal([]byte(entry.Info), &m.Info) // for people; a member of another make may say something else
	return m, m.Left+m.Longest+Slack < 0, nil
}

func (s *Store) record(epoch, stage, since int64, patterns, dialect string, shortest int64) (Record, error) {
	r := Record{
		Namespace: s.Namespace, Epoch: epoch, Stage: Stage(stage), Since: time.UnixMilli(since),
		Dialect: dialect, Shortest: time.Duration(shortest) * time.Millisecond,
	}
	if !r.Stage.Valid() {
		return Record{}, fmt.Errorf("namespace %s: stage %d is not known to this version", s.Namespace, stage)
	}
	if err := json.Unmarshal([]byte(patterns), &r.Patterns); err != nil {
		return Record{}, fmt.Errorf("namespace %s: patterns: %w", s.Namespace, err)
	}
	return r, nil
}

// eval runs a script on a connection of its own. ctx bounds the wait for the connection, ReplyTimeout
// or ctx's deadline, whichever is nearer, the wait for the reply.
func (s *Store) eval(ctx context.Context, script *scripts.Script, keysAndArgs ...any) (any, error) {
	conn, err := s.Pool.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	timeout := s.ReplyTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(deadline), time.Millisecond))
	}
	return wire.Eval(conn, timeout, script, keysAndArgs...)
}
