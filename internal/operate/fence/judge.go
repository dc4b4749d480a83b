package fence

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"
)

// judge lists what a fence needs, and what the server says of each. Other clients need the commands of Writes too, so a fence does not deny
// them; but while anybody may run one, a legacy lock can be taken.
func (p *Plan) judge(ctx context.Context, conn redis.Conn, lines []string) {
	if p.Takes == nil { // the way back
		return
	}
	all := people(ctx, conn, lines)
	others := slices.DeleteFunc(slices.Clone(all), func(who person) bool { return slices.Contains(p.options.Users, who.user) })
	own := []person{{rule: parse(ruleOf(lines, p.User)), name: p.User}}
	said, user := p.denied(ctx, conn, "user-denied", own, p.options.commands())
	_, besides := p.denied(ctx, conn, "other-users-denied", others, p.options.commands())
	_, set := p.denied(ctx, conn, "set-denied", all, Writes)
	p.Obligations = []Obligation{user, besides, set}
	switch {
	case said == "allowed":
		p.Verdict = Open
	case !user.Discharged:
		p.Verdict = Unknown
	case len(Undischarged(p.Obligations)) == 0:
		p.Verdict = Fenced
	default:
		p.Verdict = Partly
	}
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

// denied is the obligation that none of these people may run one of the commands on any key of the locks, and the worst that is said of them.
func (p *Plan) denied(ctx context.Context, conn redis.Conn, id string, all []person, commands []string) (worst string, o Obligation) {
	var can, unclear []string
	option := ""
	for _, who := range all {
		untold := ""
		for _, command := range commands {
			said, evidence := tried(ctx, conn, who.rule, p.options.Locks, command, takes)
			if said == "allowed" {
				can, untold = append(can, fmt.Sprintf("user %s may run %s", who.name, evidence)), ""
				if command == "set" {
					option = ": ACL has no rule about an option: SET NX, SET GET and WATCH with SET are denied only together with SET"
				}
				break
			} else if said == "unknown" && untold == "" {
				untold = fmt.Sprintf("of user %s: %s", who.name, evidence)
			}
		}
		if untold != "" {
			unclear = append(unclear, untold)
		}
	}
	o = Obligation{ID: id}
	switch {
	case len(can) > 0:
		o.Evidence = fewOf(can) + option
		return "allowed", o
	case len(unclear) > 0:
		o.Evidence = "ACL DRYRUN does not tell (it needs Redis 7.0, and the right acl|dryrun) " + fewOf(unclear)
		return "unknown", o
	}
	whom := fmt.Sprintf("all %d of these users that are on, or connected", len(all))
	if len(all) == 1 {
		whom = "user " + all[0].name
	}
	o.Discharged, o.Evidence = true, fmt.Sprintf("ACL DRYRUN denies %s on every key of %s to %s", spoken(commands), strings.Join(p.options.Locks, " "), whom)
	if len(all) == 0 {
		o.Evidence = "no other user is on, or connected"
	}
	return "denied", o
}

// fewOf are the first of several, and how many there are besides.
func fewOf(all []string) string {
	const most = 3
	if len(all) > most {
		all = append(slices.Clone(all[:most]), fmt.Sprintf("and so for %d more users", len(all)-most))
	}
	return strings.Join(all, "; ")
}
