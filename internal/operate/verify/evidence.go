package verify

import (
	"fmt"
	"strings"
	"time"
)

// Evidence is everything that a run gathered. It holds facts only; Judge makes the verdict of it, and can make
// it again from a certificate's file. The zero value of each field means "not looked at": a source that could
// not be read leaves its field at zero, and so leaves an obligation undischarged.
type Evidence struct {
	AskedSeconds   float64   `json:"asked_seconds"`   // how long the run was to look
	LongestSeconds float64   `json:"longest_seconds"` // what was said to be the longest lease or pause of a job, or is Namespace.Longest; 0: nothing was said
	Started        time.Time `json:"started"`         // this host's clock, when all masters had been looked at once
	Ended          time.Time `json:"ended"`           // when the last looks began
	LookedSeconds  float64   `json:"looked_seconds"`  // of the window, by a clock that nobody sets; gaps do not count
	Finished       bool      `json:"finished"`        // the run was not interrupted

	Gaps []Gap `json:"gaps,omitempty"` // when the run did not run

	OnlyMembers bool `json:"only_members,omitempty"` // the run asked whether every command came from a member's connection

	Trusted   []string   `json:"trusted,omitempty"`           // users that were said to be the new services' own
	Patterns  []string   `json:"patterns"`                    // of the keys that count as lock keys; none: every key does
	Matched   []string   `json:"matched,omitempty"`           // those of Patterns that a key or a command matched
	Database  int        `json:"database"`                    // of the lock keys
	Ignored   []int      `json:"ignored_databases,omitempty"` // that were said to be of no concern
	Namespace *Namespace `json:"namespace,omitempty"`         // nil: the run was about no namespace

	Masters     []Master `json:"masters"`
	MastersSame bool     `json:"masters_same"` // at the end the masters were those of the start, and the sentinels were not cut off
	MastersWhy  string   `json:"masters_why,omitempty"`
	Values      Values   `json:"values"`
	Seen        []Client `json:"seen"`                  // each is a legacy client, or a trace of one
	Unexplained []Client `json:"unexplained,omitempty"` // each touched lock keys, here or in another database, as no client does that may stay
}

// Gap is a time within the window when the run did not run. It does not count.
type Gap struct {
	From time.Time `json:"from"` // when the last looks that were saved began
	To   time.Time `json:"to"`
}

// Namespace is the record that the run is about.
type Namespace struct {
	Name     string    `json:"name"`
	Epoch    int64     `json:"epoch"`
	Since    time.Time `json:"since"` // of this epoch, on the server's clock; tells two servers' records apart
	Patterns []string  `json:"patterns"`
	Longest  float64   `json:"longest_seconds,omitempty"` // the longest silence that the record says; 0: it says nothing
	Same     bool      `json:"same"`                      // at the end it was read again, and was the same
	Legacy   int       `json:"legacy_members"`            // members that ran stage legacy, at the start or at the end
	Living   int       `json:"living_members"`            // members that still reported at the end

	// Of a handover: what the record says of Old, and the mark that the server has.
	OldName  string `json:"old_name,omitempty"`
	OldMark  string `json:"old_mark,omitempty"`
	MarkHere string `json:"mark_here,omitempty"`
}

// Master is one master over the window.
type Master struct {
	Addr    string `json:"addr"`
	RunID   string `json:"run_id"`
	Version string `json:"version"`      // of the Redis that the server can stand for: the duties depend on it
	Is      string `json:"is,omitempty"` // what it says that it is, such as Valkey 9.0.0

	Looks  int      `json:"looks"`            // at its counters
	Canary int64    `json:"canary"`           // by how much the count of our own ECHO rose
	Ended  bool     `json:"ended"`            // the last look succeeded
	Breaks []string `json:"breaks,omitempty"` // why two looks cannot be compared
	Moves  string   `json:"moves"`            // what a move of slots changes, at the start; empty: not known

	Writes   int       `json:"writes"`               // commands that its COMMAND table says write; 0: it could not be read
	TableWhy string    `json:"writes_why,omitempty"` // why not
	Commands []Command `json:"commands"`             // those of them, and those that it did not tell of, that ran or were denied

	Ruled []string `json:"ruled,omitempty"` // commands that no user but the trusted may run on these keys, by rules that did not change

	Redirected   int64  `json:"redirected"`            // commands that it sent to another node of its cluster
	Refused      int64  `json:"refused"`               // commands of any kind that it refused for other reasons
	CountsDenied bool   `json:"counts_denied"`         // it has rejected_calls
	Named        bool   `json:"named"`                 // SETNX and GETSET exist under these names
	NamedWhy     string `json:"named_why,omitempty"`   // why that is not known
	LogRead      bool   `json:"acl_log_read"`          // ACL LOG was read at each look
	LogWhy       string `json:"acl_log_why,omitempty"` // why not
	LogLength    int64  `json:"acl_log_length"`        // how many entries it keeps, 0 where the server does not say
	LogDenied    int64  `json:"acl_log_denied"`        // commands of fence.Taking that were denied on lock keys; SETNX and GETSET also on keys that it does not tell
	LogUntold    int64  `json:"acl_log_untold"`        // the others of them, on keys that it does not tell
	LogGap       string `json:"acl_log_gap,omitempty"` // why ACL LOG does not tell all that was denied
	Refuses      string `json:"refuses,omitempty"`     // why it refused writes at one of the looks

	WatchBreaks []string `json:"watch_breaks,omitempty"`    // what ended MONITOR before its time
	Unexplained int64    `json:"unexplained"`               // commands on lock keys that MONITOR showed and nothing explains
	Members     int64    `json:"member_commands,omitempty"` // commands on lock keys that came from members' connections
	Partial     string   `json:"partial,omitempty"`         // why this is not all that holds lock keys
}

// Command is how often one command ran on one master, between the first and the last look.
type Command struct {
	Name      string `json:"name"`
	Run       int64  `json:"run"`       // as the server counted
	Watched   int64  `json:"watched"`   // of these, MONITOR showed each one between two looks that it showed too
	Unclear   int64  `json:"unclear"`   // of the watched, those whose key or form could not be read
	Unmatched int64  `json:"unmatched"` // by how much MONITOR and the count disagree
	Denied    int64  `json:"denied"`    // refused before they ran
	Elsewhere int64  `json:"elsewhere"` // of the denied, those that ACL LOG shows on other keys
}

// Unwatched is how many ran while MONITOR did not show them.
func (c Command) Unwatched() int64 { return c.Run - c.Watched }

// Values is what stands on the keys.
type Values struct {
	StartWhole bool     `json:"start_whole"` // every key was read at the start
	EndWhole   bool     `json:"end_whole"`
	Why        []string `json:"why,omitempty"` // what was not read, and why
	Before     int      `json:"before"`        // values at the start that a legacy client may have written
	HeldBefore []string `json:"held_before"`   // keys, the first of them, that looked held at the start
	HeldAfter  []string `json:"held_after"`    // and at the end
	Changed    int      `json:"changed"`       // values that a legacy client wrote or deleted in between
}

// Client is one that was seen on lock keys, or a trace of one.
type Client struct {
	Addr     string   `json:"addr,omitempty"`
	Name     string   `json:"name,omitempty"`
	User     string   `json:"user,omitempty"`
	DB       int      `json:"db,omitempty"`
	Evidence string   `json:"evidence"`
	Dialect  string   `json:"dialect,omitempty"`
	Keys     []string `json:"keys,omitempty"`
}

// Who names it, by what is known; empty where nothing is.
func (c Client) Who() string { return strings.Join(strings.Fields(c.Addr+" "+c.Name+" "+c.User), " ") }

func (c Client) String() string {
	text := c.Who() + " (" + c.Evidence
	if len(c.Keys) > 0 {
		text += fmt.Sprintf(", on %q", c.Keys[0])
	}
	return text + ")"
}
