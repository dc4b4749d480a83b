package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/rights"
	"github.com/lockmigrate/lockmigrate/internal/servers"
)

// Server is what works on one master: what the table says of its version, less what it refuses.
type Server struct {
	Addr     string    `json:"addr"`
	Is       string    `json:"is"` // such as Valkey 9.0.0; empty where INFO does not tell
	Features []Feature `json:"features"`
}

// Feature is one row of the table for this server.
type Feature struct {
	ID   string      `json:"id"`
	Name string      `json:"name"`
	How  servers.How `json:"how"`
	Note string      `json:"note,omitempty"`
}

// Unknown is how far a feature goes on a server that does not say what it is.
const Unknown servers.How = "unknown"

// features reads the table, and takes away what the server does not let us do.
func (p *patient) features(ctx context.Context) Server {
	is := servers.Of(p.info)
	s := Server{Addr: p.addr, Is: is.String()}
	column, known := is.RangeOf()
	if !known {
		s.Is = ""
	}
	for _, f := range servers.Features {
		cell := servers.Cell{How: Unknown, Note: "the server does not say which version it is"}
		if known {
			cell = f.At(column)
		}
		if worse, is := p.lacks(ctx, f.ID); is && (!known || cell.How.Usable()) {
			cell = worse
		}
		s.Features = append(s.Features, Feature{f.ID, f.Name, cell.How, cell.Note})
	}
	return s
}

// usesOf are the rows of the table of rights behind those features that are refused when a command is missing.
var usesOf = map[string][]string{
	servers.Legacy:    {"legacy"},
	servers.Bridge:    {"compat"},
	servers.Namespace: {"compat Namespace legacy", "compat Namespace bridge", "lockmigrate stage init"},
	servers.Modern:    {"modern"},
	servers.Fencing:   {"modern FenceTTL"},
	servers.Unfair:    {"modern Unfair"},
	servers.Redisson:  {"redisson"},
	servers.Scan:      {"lockmigrate scan"},
	servers.Sweep:     {"lockmigrate sweep", "lockmigrate sweep --execute"},
	servers.Observe:   {"lockmigrate observe"},
	servers.Verify:    {"lockmigrate verify"},
	servers.Fence:     {"lockmigrate fence --execute"},
	servers.Watch:     {"lockmigrate fence --watch"},
}

// lacks tells what a feature loses here by commands that are missing or refused.
func (p *patient) lacks(ctx context.Context, feature string) (servers.Cell, bool) {
	var missing []string
	for _, name := range usesOf[feature] {
		use, _ := rights.Find(name)
		for _, r := range use.Rights {
			command := topLevel(r)
			if command != "" && r.Without == "" && p.gone(ctx, command) && !slices.Contains(missing, command) {
				missing = append(missing, command)
			}
		}
	}
	switch {
	case len(missing) > 0:
		return servers.Cell{How: servers.Refused, Note: "the server lacks, or refuses to this user, " + strings.Join(missing, " ")}, true
	case feature == servers.Verify && p.infoErr != nil:
		return servers.Cell{How: servers.Refused, Note: "INFO is refused: there are no counters"}, true
	case feature == servers.Verify && p.gone(ctx, "MONITOR"):
		return servers.Cell{How: servers.Partly, Note: "by counters only: MONITOR is refused"}, true
	case feature == servers.Observe && p.gone(ctx, "MONITOR"):
		return servers.Cell{How: servers.Refused, Note: "MONITOR is refused"}, true
	case waits[feature] && p.noTracking(ctx):
		return servers.Cell{How: servers.Polls, Note: "CLIENT TRACKING is refused"}, true
	}
	return servers.Cell{}, false
}

// waits are the features whose waiters listen.
var waits = map[string]bool{
	servers.Bridge: true, servers.Modern: true, servers.Fencing: true, servers.Unfair: true, servers.Redisson: true,
}

func (p *patient) noTracking(ctx context.Context) bool {
	if p.untracked == nil {
		verdict, _, _ := tracking(ctx, p)
		noTracking := verdict == Warn
		p.untracked = &noTracking
	}
	return *p.untracked
}

// topLevel is the command of a right, in capitals; empty for a key or a channel.
func topLevel(r rights.Right) string {
	if r.Kind != rights.Command {
		return ""
	}
	name, _, _ := strings.Cut(r.Name, "|")
	return strings.ToUpper(name)
}

// gone tells that the server does not know a command, or that this user may not run MONITOR, INFO, CONFIG, CLIENT or ACL.
func (p *patient) gone(ctx context.Context, command string) bool {
	if gone, asked := p.missing[command]; asked {
		return gone
	}
	gone := !p.exists(ctx, command)
	if !gone && command == "MONITOR" {
		allowed, known := p.may(ctx, command)
		gone = known && !allowed
	}
	p.missing[command] = gone
	return gone
}

// exists asks whether the server knows a command by this name. Where COMMAND is renamed or too new, the command is sent with a
// number of words that it does not take: the server refuses both before it runs anything, and says which of the two it is.
func (p *patient) exists(ctx context.Context, command string) bool {
	if reply, err := redis.Values(p.do(ctx, "COMMAND", "INFO", command)); err == nil && len(reply) == 1 {
		return reply[0] != nil
	}
	var args []any
	switch command {
	case "INFO", "PING", "COMMAND", "ROLE", "SCRIPT": // harmless
	case "MONITOR", "TIME", "DBSIZE", "MULTI", "EXEC", "DISCARD", "UNWATCH":
		args = []any{"x", "x", "x"}
	}
	_, err := p.do(ctx, command, args...)
	return err == nil || !strings.Contains(strings.ToLower(err.Error()), "unknown command")
}

// commands looks for every command that the packages and the tools use.
func commands(ctx context.Context, p *patient) (Verdict, string, string) {
	all, needs := map[string]bool{}, map[string][]string{} // the commands; of each, the uses that cannot do without it
	for _, use := range rights.Doctors() {
		for _, r := range use.Rights {
			if command := topLevel(r); command != "" {
				if all[command] = true; r.Without == "" {
					needs[command] = append(needs[command], use.Name)
				}
			}
		}
	}
	var missing, optional []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch uses := needs[name]; {
		case p.exists(ctx, name):
		case slices.ContainsFunc(uses, func(use string) bool { return slices.Contains(p.opts.uses(), use) }):
			missing = append(missing, name)
		case len(uses) > 0:
			optional = append(optional, fmt.Sprintf("%s (%s)", name, strings.Join(uses[:min(3, len(uses))], ", ")))
		default:
			optional = append(optional, name)
		}
	}
	switch {
	case len(missing) > 0:
		return Fail, "missing: " + strings.Join(append(missing, optional...), ", "), "undo rename-command for them, or ask the provider"
	case len(optional) > 0:
		return Warn, "missing: " + strings.Join(optional, ", "), "the tools that need them will say so; the summary below says what is lost"
	}
	return Pass, fmt.Sprintf("all of %d are there", len(all)), ""
}
