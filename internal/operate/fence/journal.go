package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Entry is a change of one user of one server: a line of the journal before the change, and one with After when it stands.
type Entry struct {
	At      time.Time `json:"at"` // this host's clock
	Server  string    `json:"server"`
	User    string    `json:"user"`
	Before  string    `json:"before"`          // the user's rules, without passwords
	Command []string  `json:"command"`         // what changed them
	After   string    `json:"after,omitempty"` // the rules then; empty: what became of it is not known
}

// ReadJournal reads the changes of a file in their order.
func ReadJournal(name string) ([]Entry, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var all []Entry
	for line := range strings.Lines(string(text)) {
		var e Entry
		entry := strings.TrimRight(line, "\n")
		err, torn := json.Unmarshal([]byte(entry), &e), (*json.SyntaxError)(nil)
		if errors.As(err, &torn) && torn.Offset == int64(len(entry)) && strings.HasPrefix(entry, "{") {
			continue // by a crash or a full disk: nothing was changed before the line was there
		}
		if err != nil || e.User == "" || e.Before == "" {
			return nil, fmt.Errorf("%s is no journal of a fence: %.60q", name, line)
		}
		same := func(o Entry) bool { return o.Server == e.Server && o.User == e.User && o.At.Equal(e.At) }
		if i := slices.IndexFunc(all, same); i >= 0 {
			all[i] = e // with what became of it
		} else {
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s holds no fence", name)
	}
	return all, nil
}

// UsersOf are the users that a journal speaks of.
func UsersOf(entries []Entry) (users []string) {
	for _, e := range entries {
		if !slices.Contains(users, e.User) {
			users = append(users, e.User)
		}
	}
	return users
}

// Back plans the way back for users of one server: their rights as they were before the fences of a journal. It only reads.
func Back(ctx context.Context, conn redis.Conn, server string, users []string, journal []Entry) ([]Plan, error) {
	lines, err := list(ctx, conn)
	if err != nil {
		return nil, err
	}
	var plans []Plan
	for _, user := range users {
		line := ruleOf(lines, user)
		p := Plan{Server: server, User: user, Now: withoutPasswords(line)}
		if line == "" {
			p.Error = fmt.Sprintf("the server has no user %q any more", user)
		} else {
			p.back(parse(line), changesOf(journal, server, user))
		}
		plans = append(plans, p)
	}
	return plans, nil
}

// changesOf are those of a user on a server; where there are none, those on other servers: this one may have another address today.
func changesOf(journal []Entry, server, user string) []Entry {
	others := slices.DeleteFunc(slices.Clone(journal), func(e Entry) bool { return e.User != user })
	here := slices.DeleteFunc(slices.Clone(others), func(e Entry) bool { return e.Server != server })
	if len(here) > 0 {
		return here
	}
	return others
}

// back plans the way from the rules of now to those before the first of the changes, one over the other. A change leads back only from the very
// rights that it made: somebody may have taken others away since, and a fence gives no rights.
func (p *Plan) back(now rule, changes []Entry) {
	want, restores := now, false
	for _, e := range slices.Backward(changes) {
		before, after := parse(e.Before), parse(e.After)
		made := e.After != "" && (slices.Equal(after.rights(), want.rights()) || alike(after, want) && !alike(after, before))
		lost := e.After == "" && slices.ContainsFunc(e.Command, func(w string) bool { return strings.HasPrefix(w, "-") && slices.Contains(want.root.commands, w) })
		if made || lost {
			want, restores = before, true
		}
	}
	switch {
	case restores:
		p.Command = p.restore(now, want)
	case len(changes) == 0:
		p.Note = "the journal has no fence of this user"
	case alike(parse(changes[0].Before), now):
		p.Note = "the rules are those of before the fence"
	default:
		p.Error = "the rules were changed since the fence went up, so nothing is restored: give back by hand what is missing"
		p.Restore = p.restore(now, parse(changes[0].Before))
	}
}

// restore is the command that gives a user the commands and selectors of a rule. Keys, channels and passwords stay.
func (p *Plan) restore(now, want rule) []string {
	command := append([]string{"ACL", "SETUSER", p.User, "-@all"}, want.root.commands...)
	if len(now.selectors) > 0 {
		command = append(command, "clearselectors")
	}
	for _, s := range want.selectors {
		command = append(command, s.text())
	}
	return command
}
