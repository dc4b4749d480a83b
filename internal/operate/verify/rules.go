package verify

import (
	"context"
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
)

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
