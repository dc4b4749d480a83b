package explore

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

var actNames = [...]string{
	"a tick passes", "begins", "runs", "hears the reply", "wakes up", "ends its work", "begins to renew",
	"crashes", "has its clock stepped", "gives up waiting", "stray command runs", "replica catches up", "failover",
	"gives its wait up", "the record is corrected", "reports", posted: "", reads: "reads that it ",
}

// trace follows the origins back from a node to the beginning, and tells the run forwards. It counts the commands that ran at the server.
func (s *search) trace(at int) (lines []string, ran int) {
	var path []int
	for ; at != 0; at = int(s.origins[at].parent) {
		path = append(path, at)
		if act := s.origins[at].act; act == runs || act == strays {
			ran++
		}
	}
	before := 0
	for _, at := range slices.Backward(path) {
		lines = append(lines, s.describe(before, at))
		before = at
	}
	return lines, ran
}

// describe tells one step: when, who, what, and the clients inside afterwards.
func (s *search) describe(before, at int) string {
	t, from := s.tables, s.origins[at]
	n, was := &s.nodes[at], &s.nodes[before]
	who, what := s.model.Clients[from.client].Name, actNames[min(from.act, reads)]
	switch from.act {
	case tickPasses, syncs, failsOver, corrects:
		if who = "world"; from.act == corrects && s.model.Handover != nil {
			what = "the stage moves to " + stageNames[n.over&3]
		}
	case runs, strays:
		f := t.facts[from.client][was.actors[from.client]]
		command := f.command
		if from.act == strays {
			command = f.stray
		}
		done := t.executed(was.server, command, int(from.client), f.turn, from.heard, Ticks(n.tick))
		what = model.SayCommand(&t.commands.all[command]) + " -> " + model.SayReply(&t.replies.all[done.reply])
	}
	if from.act >= reads {
		what += sayLetter(&t.actors[from.client].all[was.actors[from.client]].mail[from.act-reads])
	}
	line := fmt.Sprintf("t%-2d %-6s %-46s", n.tick, who, what)
	inside := " inside:"
	for i := range s.model.Clients {
		if s.inside(n, i) {
			line += inside + " " + s.model.Clients[i].Name
			inside = ""
		}
	}
	return strings.TrimRight(line, " ")
}
