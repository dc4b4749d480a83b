package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"
)

// topLevel is the command of a right, in capitals; empty for a key or a channel.
func topLevel(r Right) string {
	if r.Kind != Command {
		return ""
	}
	name, _, _ := strings.Cut(r.Name, "|")
	return strings.ToUpper(name)
}

// exists tells whether the server knows a command by this name.
func (p *patient) exists(ctx context.Context, command string) bool {
	there, asked := p.known[command]
	if !asked {
		there = p.askFor(ctx, command)
		p.known[command] = there
	}
	return there
}

// askFor asks for a command. Where COMMAND is renamed or too new, the command is sent with a number of words that it does not take: the
// server refuses both before it runs anything, and says which of the two it is.
func (p *patient) askFor(ctx context.Context, command string) bool {
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
	for _, use := range Uses() {
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
		case slices.ContainsFunc(uses, func(use string) bool { return slices.Contains(p.opts.Uses, use) }):
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
		return Warn, "missing: " + strings.Join(optional, ", "), "the tools that need them will say so"
	}
	return Pass, fmt.Sprintf("all of %d are there", len(all)), ""
}
