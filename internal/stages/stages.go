// Package stages keeps the stage of a namespace in Redis: which keys, which dialect, which stage, and
// which members run it.
//
// Every change of a record is one script, so a crash leaves the state before or the state after it; both are
// legal. What makes a state legal is argued where it is enforced, in stage_move.lua and stage_join.lua. What keeps
// the keys of two namespaces apart is argued in list.go.
package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// Stage is one of the three ways to hold a key that a fleet goes through.
type Stage = lockmigrate.Stage

const (
	Legacy = lockmigrate.StageLegacy
	Bridge = lockmigrate.StageBridge
	Modern = lockmigrate.StageModern
	Old    = lockmigrate.StageOld
	Both   = lockmigrate.StageBoth
	New    = lockmigrate.StageNew
)

// Valid tells that there is such a stage.
func Valid(s Stage) bool { return s >= Legacy && s <= Modern || s >= Old && s <= New }

// Number is what a stage is on the server: the first of its kind of namespace is 0.
func Number(s Stage) int {
	if s >= Old {
		return int(s - Old)
	}
	return int(s)
}

// stage is the stage with a number.
func (r Record) stage(number int64) Stage {
	if r.Handover != nil && number >= 0 {
		return Old + Stage(number)
	}
	return Stage(number)
}

// Parse finds a stage by its name.
func Parse(name string) (Stage, error) {
	for _, s := range []Stage{Legacy, Bridge, Modern, Old, Both, New} {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("no stage is named %q; they are legacy, bridge, modern, and old, both, new of a handover", name)
}

// What is taken for the old clients' clocks and commands where a record does not say.
const (
	DefaultClockLag     = protocol.DefaultClockLag
	DefaultCommandDelay = protocol.DefaultCommandDelay
)

// Info is what a member says of itself, for people.
type Info struct {
	Host    string `json:"host"`
	Process int    `json:"pid"`
	User    string `json:"user,omitempty"` // that it is on the server, where that can be told
	Build   Build  `json:"build,omitzero"`
	Note    string `json:"note,omitempty"` // what somebody should do about it

	// Connections are those over which this member takes the halves of a handover: see lockers.Connection.
	Connections []string `json:"connections,omitempty"`
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
	Misfit  string        // why it cannot run the record; empty when it can
}

// Lives tells that the member's lease lasts: commands of it may act.
func (m Member) Lives() bool { return m.Left >= 0 }

// Follows tells that the member runs the record as it stands.
func (m Member) Follows(r Record) bool { return m.Epoch == r.Epoch && m.Stage == r.Stage }

// View is a namespace at one moment.
type View struct {
	Record  Record
	Members []Member
	Now     time.Time // on the server's clock
}

// Living are the members whose leases last.
func (v View) Living() []Member {
	return slices.DeleteFunc(slices.Clone(v.Members), func(m Member) bool { return !m.Lives() })
}

// ChangingOver returns the members that live and do not run the record as it stands yet, and for how long at
// most a command of any member may still act in the stage before: until the last of their leases is over. A
// member that cannot run the record is not among the first: it acquires nothing.
func (v View) ChangingOver() (members []Member, atMost time.Duration) {
	for _, m := range v.Living() {
		if !m.Follows(v.Record) && m.Misfit == "" {
			members = append(members, m)
			atMost = max(atMost, m.Left)
		}
	}
	return members, atMost
}

// Blocker is a member that stands in the way of a change.
type Blocker struct {
	Member string
	Why    string        // misfit, behind, silent, holds, unreadable or restarted; lives or silent where no member may be there at all
	Wait   time.Duration // until it has run out; negative while it lives
	Stage  Stage         // that it runs, or the stage of what it holds
	Left   time.Duration // of its lease; negative: it is silent
	Misfit string        // why it cannot run the record
}

// String says who blocks and what will end it.
func (b Blocker) String() string {
	switch b.Why {
	case "misfit":
		return fmt.Sprintf("%s cannot run this namespace: %s; correct or stop it", b.Member, b.Misfit)
	case "behind":
		return fmt.Sprintf("%s is still on the previous epoch; it takes over the new one with its next report, within %v", b.Member, whole(b.Left))
	case "silent":
		return fmt.Sprintf("%s is silent; its last lock expires in %v", b.Member, whole(b.Wait))
	case "unreadable":
		return fmt.Sprintf("%s: %s", b.Member, b.Misfit)
	case "restarted":
		return fmt.Sprintf("the server was restarted or replaced, and may have lost a change of the stage; a member's next report decides it, or %v", whole(b.Wait))
	case "lives":
		return fmt.Sprintf("%s lives; stop it first", b.Member)
	default: // holds
		if b.Wait >= 0 {
			return fmt.Sprintf("%s is silent and may hold a lock of stage %s for another %v", b.Member, b.Stage, whole(b.Wait))
		}
		return fmt.Sprintf("%s runs, or holds a lock of, stage %s", b.Member, b.Stage)
	}
}

// whole rounds a time up to tenths of a second: it is a bound.
func whole(d time.Duration) time.Duration {
	return max(0, (d + 99*time.Millisecond).Truncate(100*time.Millisecond))
}

// What a Store finds.
var (
	ErrNoRecord = errors.New("there is no such namespace")
	ErrExists   = errors.New("the namespace exists already")
	ErrConflict = errors.New("the stage has been changed by somebody else")
	ErrLate     = errors.New("the report came too late to count")
	// ErrForgot is a refusal of a lease, and ErrApart with it one to a member that runs what the record knows nothing of.
	ErrForgot  = errors.New("the server may have lost changes of the stage")
	ErrApart   = errors.New("the record is two stages from what this member runs or holds")
	ErrBusy    = errors.New("another operator changes this namespace")
	ErrGarbage = errors.New("the record cannot be read: somebody else has written there")
	// ErrNewer is of a record whose protocol this build does not know: stage_version.lua refuses, and names the build that does.
	ErrNewer = errors.New("the record is of a newer protocol")
)

// Protocol is the version of the record, and of all that members write, that this build knows. See docs/compatibility.md.
const Protocol = 1

// Unreadable tells that a record is there which this build cannot follow or change.
func Unreadable(err error) bool { return errors.Is(err, ErrGarbage) || errors.Is(err, ErrNewer) }

// newer is the refusal of a script.
type newer struct{ refused redis.Error }

const newerReply = "PROTOCOL "

func (n newer) Error() string   { return strings.TrimPrefix(string(n.refused), newerReply) }
func (n newer) Unwrap() []error { return []error{ErrNewer, n.refused} }

// Store reads and changes one namespace.
type Store struct {
	Pool         lockmigrate.Pool
	Namespace    string
	ReplyTimeout time.Duration
	By           string // who changes the record, from where: for its history
}

// CheckName tells whether a namespace can have this name.
func CheckName(name string) error {
	if name == "" || len(name) > 100 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-") != "" {
		return fmt.Errorf("a namespace's name is up to 100 letters, digits and any of . _ : - (not %q)", name)
	}
	return nil
}

// RecordKey returns the name of a namespace's record.
func RecordKey(namespace string) string { return "lockmigrate:{" + namespace + "}:stage" }

// MembersKey returns the name of the hash of a namespace's members.
func MembersKey(namespace string) string { return "lockmigrate:{" + namespace + "}:members" }

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
	Misfit  string    // why it cannot run the record; empty when it can
	Bound   time.Time // on the server's clock; a report that arrives later does not count
}

// Order is what a member is told.
type Order struct {
	Record
	Now  time.Time // on the server's clock
	Ends time.Time // of the lease, on the server's clock
}

// Hello asks for the record, without a report: nothing is written. Ends is the zero time.
func (s *Store) Hello(ctx context.Context) (Order, error) {
	return s.join(ctx, Report{Bound: time.UnixMilli(0)})
}

// Join reports and returns the order that stands. ErrLate comes with the server's clock in Order.Now, and so does
// ErrNoRecord.
func (s *Store) Join(ctx context.Context, r Report) (Order, error) {
	if r.Bound.UnixMilli() <= 0 {
		return Order{}, fmt.Errorf("report to namespace %s: a report needs a bound", s.Namespace)
	}
	return s.join(ctx, r)
}

func (s *Store) join(ctx context.Context, r Report) (Order, error) {
	info, err := json.Marshal(r.Info)
	if err != nil {
		return Order{}, err
	}
	row, err := redis.Values(s.eval(ctx, scripts.StageJoin, s.on(scripts.Values{
		"id": r.ID, "seq": r.Seq, "lease": r.Lease.Milliseconds(), "epoch": r.Epoch, "stage": Number(r.Stage), "lowest": Number(r.Lowest), "highest": Number(r.Highest),
		"longest": r.Longest.Milliseconds(), "skew": r.Skew.Milliseconds(), "info": info, "not_after": r.Bound.UnixMilli(), "why": r.Misfit})))
	if err != nil {
		return Order{}, fmt.Errorf("report to namespace %s: %w", s.Namespace, err)
	}
	var code, now int64
	if row, err = redis.Scan(row, &code, &now); err != nil {
		return Order{}, err
	}
	clock := Order{Now: time.UnixMilli(now)}
	switch code {
	case 0:
		return clock, fmt.Errorf("namespace %s: %w", s.Namespace, ErrNoRecord)
	case -1:
		return clock, fmt.Errorf("report to namespace %s: a later report of this member has arrived already, or it has left", s.Namespace)
	case -2:
		return clock, fmt.Errorf("report to namespace %s: %w", s.Namespace, ErrLate)
	case -3:
		return clock, fmt.Errorf("report to namespace %s: %w", s.Namespace, forgot(row))
	}
	var ends, epoch, stage int64
	var patterns, clients string
	if _, err := redis.Scan(row, &ends, &epoch, &stage, &patterns, &clients); err != nil {
		return Order{}, err
	}
	record, err := s.record(epoch, stage, 0, patterns, clients)
	clock.Record = record
	if code == 1 {
		clock.Ends = time.UnixMilli(ends)
	}
	return clock, err
}

// forgot says why the server gives no lease.
func forgot(row []any) error {
	var ms int64
	var why string
	if _, err := redis.Scan(row, &ms, &why); err != nil {
		return err
	}
	switch why {
	case "apart":
		return fmt.Errorf("%w: %w; it gets a lease when it holds nothing there any more", ErrForgot, ErrApart)
	case "ahead":
		return fmt.Errorf("%w: a member is two stages ahead of the record; others get a lease when that one holds nothing there any more", ErrForgot)
	default:
		return fmt.Errorf("%w: it was restarted or replaced; members that start get a lease when one that has worked since before reports, in %v at the latest", ErrForgot, whole(time.Duration(ms)*time.Millisecond))
	}
}

// Leave takes a member that holds nothing off the record. Bound is the latest of its reports' bounds: until then
// a report that is still on its way would bring it back, and is refused.
func (s *Store) Leave(ctx context.Context, id string, seq int64, bound time.Time) error {
	_, err := s.eval(ctx, scripts.StageLeave, s.on(scripts.Values{"id": id, "seq": seq, "not_after": bound.UnixMilli()}))
	return err
}

// Move changes the stage to a neighbour, if the epoch is still the one given and nobody blocks it.
// Without execute it tells what would happen. Blockers that are returned mean that nothing was done;
// ErrConflict that the epoch is another.
func (s *Store) Move(ctx context.Context, epoch int64, to Stage, execute bool) ([]Blocker, error) {
	return s.move(ctx, epoch, to, execute, "")
}

func (s *Store) move(ctx context.Context, epoch int64, to Stage, execute bool, note string) ([]Blocker, error) {
	kind := Record{}
	if to >= Old {
		kind.Handover = &Halves{}
	}
	return s.change(ctx, kind, fmt.Sprintf("move namespace %s to %v", s.Namespace, to), scripts.StageMove, execute, scripts.Values{
		"seen": epoch, "target": Number(to), "note": note, "change": s.changing(epoch+1, note, "to stage %v", to)})
}

// change runs a script that changes the record, or tells what it would do: who blocks it, nobody when it is done, or why it cannot be.
func (s *Store) change(ctx context.Context, of Record, what string, script *scripts.Script, execute bool, values scripts.Values) ([]Blocker, error) {
	values["execute"] = 0
	if execute {
		values["execute"] = 1
	}
	row, err := redis.Values(s.eval(ctx, script, s.on(values)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, unsure(err, execute))
	}
	var code, found, stage int64
	if row, err = redis.Scan(row, &code, &found, &stage); err != nil {
		return nil, err
	}
	switch code {
	case 1:
		return nil, nil
	case -1:
		return nil, fmt.Errorf("%s: %w: it is %v, epoch %d", what, ErrConflict, of.stage(stage), found)
	case -2:
		return nil, fmt.Errorf("%s: %w", what, ErrNoRecord)
	case -3:
		return nil, fmt.Errorf("%s: it took %v too long; nothing was changed", what, time.Duration(found)*time.Millisecond)
	}
	var blockers []Blocker
	for len(row) > 0 {
		var b Blocker
		var wait, stage, left int64
		if row, err = redis.Scan(row, &b.Member, &b.Why, &wait, &stage, &left, &b.Misfit); err != nil {
			return nil, err
		}
		if b.Why == "unreadable" {
			b.Misfit = s.unreadable(b.Member)
		}
		b.Wait, b.Left, b.Stage = time.Duration(wait)*time.Millisecond, time.Duration(left)*time.Millisecond, of.stage(stage)
		blockers = append(blockers, b)
	}
	return blockers, nil
}

// Show reads the namespace. With ErrNoRecord come the members that a lost record has left.
func (s *Store) Show(ctx context.Context) (View, error) {
	row, err := redis.Values(s.eval(ctx, scripts.StageShow, s.on(scripts.Values{})))
	var refused redis.Error
	if errors.As(err, &refused) && strings.Contains(string(refused), "WRONGTYPE") {
		return View{}, s.garbage("%w", err)
	}
	if err != nil {
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
	view := View{Now: now}
	if fields["epoch"] != "" {
		var epoch, stage, since int64
		for name, into := range map[string]*int64{"epoch": &epoch, "stage": &stage, "since": &since} {
			if *into, err = strconv.ParseInt(fields[name], 10, 64); err != nil {
				return View{}, s.garbage("field %s: %w", name, err)
			}
		}
		if view.Record, err = s.record(epoch, stage, since, fields["patterns"], fields["clients"]); err != nil {
			return View{}, err
		}
		view.Record.Note, view.Record.History = fields["note"], historyOf(fields["history"])
	}
	members, err := redis.StringMap(row[2], nil)
	if err != nil {
		return View{}, err
	}
	for id, text := range members {
		m, gone, err := member(id, text, now)
		if err != nil {
			m = Member{ID: id, Epoch: -1, Stage: -1, Highest: Modern, Misfit: s.unreadable(id)}
		}
		r := view.Record
		m.Stage, m.Lowest, m.Highest = r.stage(int64(m.Stage)), r.stage(int64(m.Lowest)), r.stage(int64(m.Highest))
		if !gone {
			view.Members = append(view.Members, m)
		}
	}
	sort.Slice(view.Members, func(i, j int) bool { return view.Members[i].ID < view.Members[j].ID })
	if fields["epoch"] == "" {
		return view, fmt.Errorf("namespace %s: %w", s.Namespace, ErrNoRecord)
	}
	return view, nil
}

// Lost tells that members of a record that is gone may still hold locks; nil if none does.
func (v View) Lost() error {
	var left time.Duration
	for _, m := range v.Members {
		if m.Longest > 0 {
			left = max(left, m.Left+m.Longest+Slack)
		}
	}
	if left <= 0 {
		return nil
	}
	return fmt.Errorf("members of a record that was lost may still hold locks, for up to %v", left)
}

// unreadable says what to do about a member whose entry nobody can read.
func (s *Store) unreadable(id string) string {
	return fmt.Sprintf("its entry cannot be read, so nobody knows what it holds; a process of that name writes it anew; if there is none, and its locks are over, remove it: HDEL %s %q", MembersKey(s.Namespace), id)
}

// Slack is what stage_shared.lua adds to a silent member's time.
const Slack = time.Second

func member(id, text string, now time.Time) (m Member, gone bool, err error) {
	var entry struct {
		Epoch, Stage, Lo, Hi, Seen, Ends, Longest, Skew, Left float64
		Info, Why                                             string
	}
	if err := json.Unmarshal([]byte(text), &entry); err != nil {
		return Member{}, false, err
	}
	if entry.Left != 0 {
		return Member{}, true, nil // it has said goodbye
	}
	if entry.Ends <= 0 {
		return Member{}, false, errors.New("it has no lease")
	}
	ms := func(f float64) time.Duration { return time.Duration(f) * time.Millisecond }
	at := func(f float64) time.Time { return time.UnixMilli(int64(f)) }
	m = Member{
		ID: id, Epoch: int64(entry.Epoch), Stage: Stage(entry.Stage), Lowest: Stage(entry.Lo), Highest: Stage(entry.Hi),
		Seen: now.Sub(at(entry.Seen)), Left: at(entry.Ends).Sub(now), Longest: ms(entry.Longest), Skew: ms(entry.Skew),
		Misfit: entry.Why,
	}
	_ = json.Unmarshal([]byte(entry.Info), &m.Info) // for people; a member of another make may say something else
	return m, m.Left+m.Longest+Slack < 0, nil
}

// eval runs a script on a connection of its own. ctx bounds the wait for the connection, ReplyTimeout
// or ctx's deadline, whichever is nearer, the wait for the reply.
func (s *Store) eval(ctx context.Context, script *scripts.Script, values scripts.Values) (any, error) {
	timeout := s.ReplyTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(deadline), time.Millisecond))
	}
	reply, err := topology.Over(ctx, s.Pool, func(conn redis.Conn) (any, error) { return wire.Eval(conn, timeout, script, values) })
	var refused redis.Error
	if errors.As(err, &refused) && strings.HasPrefix(string(refused), newerReply) {
		err = newer{refused}
	}
	return reply, err
}

// on adds the keys of the namespace to the values of a script.
func (s *Store) on(values scripts.Values) scripts.Values {
	values["record"], values["members"] = RecordKey(s.Namespace), MembersKey(s.Namespace)
	return values
}
