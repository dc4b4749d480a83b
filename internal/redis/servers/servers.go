// Package servers says how a server matches keys against patterns, and what works on which server: the one table behind docs/servers.md, behind
// doctor's check of the version and behind the refusal of a server that is too old. The suite versions tries each cell on a real server.
package servers

import (
	"slices"
	"strconv"
	"strings"
)

// Server is what a server says that it is.
type Server struct {
	Name    string // Redis, Valkey, or what it calls itself
	Version string // its own; empty where it is not told
}

func (s Server) String() string { return strings.TrimSpace(s.Name + " " + s.Version) }

// Of reads the fields of INFO server. Valkey also tells a redis_version, which is that of the Redis that it replaces.
func Of(info map[string]string) Server {
	name := info["server_name"]
	switch {
	case info["valkey_version"] != "":
		return Server{"Valkey", info["valkey_version"]}
	case name == "" || strings.EqualFold(name, "redis"):
		return Server{"Redis", info["redis_version"]}
	}
	version := info[strings.ToLower(name)+"_version"]
	if version == "" {
		version = info["redis_version"]
	}
	return Server{strings.ToUpper(name[:1]) + name[1:], version}
}

// How is how far a feature goes on a server.
type How string

// The ways.
const (
	Works   How = "works"
	Polls   How = "polls"   // works; waiters find a release by polling and by messages, as there is no client tracking
	Partly  How = "partly"  // works but for what the note names
	Refused How = "refused" // this project refuses it, in words, before anything is written
	Absent  How = "absent"  // the server does not offer what the feature stands on
)

// Usable tells that the feature can be used.
func (h How) Usable() bool { return h == Works || h == Polls || h == Partly }

// Cell is a feature on a range of servers.
type Cell struct {
	How  How
	Note string // why it is not plain Works; empty for Works
}

func (c Cell) String() string {
	if c.Note == "" {
		return string(c.How)
	}
	return string(c.How) + ": " + c.Note
}

// Range is a column: servers on which the same things work.
type Range struct {
	Name  string
	Tried string // the versions that the suite runs on
	from  [2]int // Redis; major and minor
}

// Ranges are the columns, oldest first. The last one is for other servers than Redis.
var Ranges = []Range{
	{"Redis 2.8, 3.0", "2.8.19", [2]int{2, 6}},
	{"Redis 3.2, 4.0", "3.2.6", [2]int{3, 2}},
	{"Redis 5.0", "5.0.6", [2]int{5, 0}},
	{"Redis 6.0", "6.0.16", [2]int{6, 0}},
	{"Redis 6.2", "6.2.11", [2]int{6, 2}},
	{"Redis 7", "7.0.15", [2]int{7, 0}},
	{"Redis 8", "8.10.2", [2]int{8, 0}},
	{"Valkey 8, 9", "8.1.8 9.0.0", [2]int{}},
}

const (
	oldest = iota // no script may write after it has read the clock
	effects
	_
	acl // and client tracking
	_
	selectors // and ACL DRYRUN
)

// RangeOf finds the column of a server; none is right for one that is no Redis or Valkey, or does not tell its version.
func (s Server) RangeOf() (column int, known bool) {
	if s.Name == "Valkey" {
		return len(Ranges) - 1, s.Version != ""
	}
	words := strings.SplitN(s.Version, ".", 3)
	if s.Name != "Redis" || len(words) < 2 {
		return 0, false
	}
	major, err1 := strconv.Atoi(words[0])
	minor, err2 := strconv.Atoi(words[1])
	if err1 != nil || err2 != nil {
		return 0, false
	}
	column = -1
	for i, r := range Ranges[:len(Ranges)-1] {
		if major > r.from[0] || major == r.from[0] && minor >= r.from[1] {
			column = i
		}
	}
	return max(column, 0), column >= 0
}

// Feature is a row.
type Feature struct {
	ID    string // one word, for the suite and for JSON
	Name  string // in docs/servers.md and in messages
	Needs string // what it needs of a server; empty for what every server has

	from   int  // the first column where it can be used
	before Cell // the columns before that
	waits  bool // somebody waits, and polls where there is no client tracking
}

// At is the cell of a column.
func (f Feature) At(column int) Cell {
	switch {
	case column < f.from:
		return f.before
	case f.waits && column < acl:
		return Cell{Polls, "no client tracking"}
	case f.ID == Fence && column < selectors:
		return Cell{Partly, "no --keep, no trial of the rules"}
	}
	return Cell{How: Works}
}

const clockNote = "a script may not write after it has read the clock"

// The rows' names, for those who look one up.
const (
	Legacy    = "legacy"
	Bridge    = "compat-bridge"
	Namespace = "namespace"
	Modern    = "modern"
	Fencing   = "modern-fencettl"
	Unfair    = "modern-unfair"
	Redisson  = "redisson"
	Doctor    = "doctor"
	Scan      = "scan"
	Sweep     = "sweep"
	Observe   = "observe"
	Verify    = "verify"
	Fence     = "fence"
)

const scriptEffects = "Redis 3.2: " + clockNote + " before"

var tooOld = Cell{Refused, clockNote}

// Features are the rows.
var Features = []Feature{
	{Legacy, "package legacy, every dialect and release policy", "", 0, Cell{}, false},
	{Bridge, "package compat at the stages bridge and modern", scriptEffects, effects, tooOld, true},
	{Namespace, "namespaces: members, stage init, advance, rollback", scriptEffects, effects, tooOld, false},
	{Modern, "package modern with its queue, Yield, Replicas", scriptEffects, effects, tooOld, true},
	{Fencing, "package modern with FenceTTL", scriptEffects, effects, tooOld, true},
	{Unfair, "package modern with Unfair and without FenceTTL", "", 0, Cell{}, true},
	{Redisson, "package modern/redisson", "", 0, Cell{}, true},
	{Doctor, "lockmigrate doctor", "", 0, Cell{}, false},
	{Scan, "lockmigrate scan", "", 0, Cell{}, false},
	{Sweep, "lockmigrate sweep", "", 0, Cell{}, false},
	{Observe, "lockmigrate observe", "", 0, Cell{}, false},
	{Verify, "lockmigrate verify", "", 0, Cell{}, false},
	{Fence, "lockmigrate fence", "Redis 6.0: ACL; --keep needs 7.0", acl, Cell{Absent, "no ACL"}, false},
}

// Find returns a row.
func Find(id string) (Feature, bool) {
	i := slices.IndexFunc(Features, func(f Feature) bool { return f.ID == id })
	if i < 0 {
		return Feature{}, false
	}
	return Features[i], true
}
