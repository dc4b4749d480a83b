package fence

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/obligation"
)

// judge lists what a fence needs, and what the server says of each.
func (p *Plan) judge(ctx context.Context, conn redis.Conn, lines []string) {
	if p.Takes == nil { // the way back
		return
	}
	all := people(ctx, conn, lines)
	user := p.userObligation(parse(ruleOf(lines, p.User)))
	others := othersObligation(ctx, conn, all, p.options)
	set := p.setObligation(ctx, conn, all)
	p.Obligations = []obligation.Obligation{user, others, set}
	_, allowed := p.said("allowed")
	switch {
	case allowed:
		p.Verdict = Open
	case !user.Discharged:
		p.Verdict = Unknown
	case obligation.All(p.Obligations):
		p.Verdict = Fenced
	default:
		p.Verdict = Partly
	}
}

func (p *Plan) userObligation(r rule) obligation.Obligation {
	o := obligation.Obligation{ID: "user-denied"}
	for _, command := range p.options.commands() {
		if why := r.unshown(command); why != "" {
			o.Evidence = why
			return o
		}
	}
	if trial, found := p.said("allowed"); found {
		o.Evidence = fmt.Sprintf("ACL DRYRUN allows %s to user %s", strings.Join(trial, " "), p.User)
	} else if trial, found := p.said("unknown"); found {
		o.Evidence = fmt.Sprintf("ACL DRYRUN does not tell about %s (it needs Redis 7.0, and the right acl|dryrun)", strings.Join(trial, " "))
	} else {
		o.Discharged = true
		n := 0
		for _, t := range p.Checks {
			if t.After == "denied" {
				n++
			}
		}
		o.Evidence = fmt.Sprintf("ACL DRYRUN denies %s to user %s, in %d trials that stand for every key of %s", spoken(p.options.commands()), p.User, n, strings.Join(p.options.Locks, " "))
	}
	return o
}

// person is a user that somebody can connect as, or is connected as.
type person struct {
	rule
	name string // with what is special about it
}

// people lists them.
func people(ctx context.Context, conn redis.Conn, lines []string) (all []person) {
	connected, unseen := Connections(ctx, conn)
	for _, line := range lines {
		who := person{rule: parse(line)}
		who.name = who.user
		switch off := slices.Contains(who.root.other, "off"); {
		case off && unseen != nil:
			who.name += " (off; whether it is connected needs +client|list)"
		case off && connected[who.user] > 0:
			who.name += " (off, but connected)"
		case off:
			continue
		}
		all = append(all, who)
	}
	return all
}

// othersObligation looks at every user that is not to be fenced.
func othersObligation(ctx context.Context, conn redis.Conn, all []person, opts Options) obligation.Obligation {
	o := obligation.Obligation{ID: "other-users-denied"}
	var can, unclear []string
	users := 0
	for _, who := range all {
		if slices.Contains(opts.Users, who.user) {
			continue
		}
		users++
		verdict := "denied"
		for _, command := range opts.commands() {
			if said, _ := may(ctx, conn, who.rule, opts.Locks, command); said != "denied" && verdict != "allowed" {
				verdict = said
			}
		}
		switch verdict {
		case "allowed":
			can = append(can, who.name)
		case "unknown":
			unclear = append(unclear, who.name)
		}
	}
	switch {
	case len(can) > 0:
		o.Evidence = "may run one of " + spoken(opts.commands()) + " on a lock's key: user " + strings.Join(can, ", ")
	case len(unclear) > 0:
		o.Evidence = "ACL DRYRUN does not tell about user " + strings.Join(unclear, ", ")
	case users == 0:
		o.Discharged, o.Evidence = true, "no other user is on, or connected"
	default:
		o.Discharged, o.Evidence = true, fmt.Sprintf("ACL DRYRUN denies %s to the %d other users that are on, or connected", spoken(opts.commands()), users)
	}
	return o
}

// setObligation is about the other commands that write a lock's value. Other clients need them too, so a fence does
// not deny them; but while anybody may run one, a legacy lock can be taken.
func (p *Plan) setObligation(ctx context.Context, conn redis.Conn, all []person) obligation.Obligation {
	o := obligation.Obligation{ID: "set-denied"}
	for _, who := range all {
		for _, command := range Writes {
			switch said, evidence := may(ctx, conn, who.rule, p.options.Locks, command); {
			case said == "allowed" && command == "set":
				o.Evidence = fmt.Sprintf("user %s may run %s: ACL has no rule about an option: SET NX, SET GET and WATCH with SET are denied only together with SET", who.name, evidence)
				return o
			case said == "allowed":
				o.Evidence = fmt.Sprintf("user %s may run %s", who.name, evidence)
				return o
			case said == "unknown":
				o.Evidence = fmt.Sprintf("ACL DRYRUN does not tell about %s by user %s: %s", strings.ToUpper(command), who.name, evidence)
				return o
			}
		}
	}
	o.Discharged, o.Evidence = true, "ACL DRYRUN denies "+strings.ToUpper(strings.Join(Writes, ", "))+" on every key of the patterns, to everybody"
	return o
}
