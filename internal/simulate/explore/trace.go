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
	"gives its wait up", "the record is corrected", "reports",
}

// trace follows the origins back from a node to the beginning, and tells the run forwards.
func (s *search) trace(at int) []Step {
	var path []int
	for ; at != 0; at = int(s.origins[at].parent) {
		path = append(path, at)
	}
	slices.Reverse(path)
	var steps []Step
	before := 0
	for _, at := range path {
		steps = append(steps, s.describe(before, at))
		before = at
	}
	return steps
}

func (s *search) describe(before, at int) Step {
	t, from := s.tables, s.origins[at]
	n, was := &s.nodes[at], &s.nodes[before]
	step := Step{Tick: Ticks(n.tick), Client: int(from.client)}
	if from.act >= reads {
		letter := t.actors[from.client].at(was.actors[from.client]).mail[from.act-reads]
		step.What = sayLetter(&letter)
	} else {
		step.What = actNames[from.act]
	}
	if from.act == corrects && s.model.Handover != nil {
		step.What = "the stage moves to " + stageNames[n.over&3]
	}
	switch from.act {
	case tickPasses, syncs, failsOver, corrects:
		step.Client = -1
	case runs, strays:
		f := t.facts[from.client][was.actors[from.client]]
		command := f.command
		if from.act == strays {
			command = f.stray
		}
		step.Ran = true
		step.Command = t.commands[command]
		step.Reply = t.replies[t.executed(was.server, command, int(from.client), f.turn, from.heard, Ticks(n.tick)).reply]
		step.What = model.SayCommand(&step.Command) + " -> " + model.SayReply(&step.Reply)
	}
	for i := range s.model.Clients {
		if s.inside(n, i) {
			step.Inside = append(step.Inside, i)
		}
	}
	step.Key = "(none)"
	if e, ok := t.servers[n.server].store.Look(s.model.serverClock(Ticks(n.tick)), s.model.Clients[0].Key); ok {
		step.Key = e.Value
	}
	return step
}

// Commands counts the server commands of a trace.
func Commands(trace []Step) int {
	n := 0
	for i := range trace {
		if trace[i].Ran {
			n++
		}
	}
	return n
}

// Text is one line of a counterexample.
func (st *Step) Text(m *Model) string {
	who := "world"
	if st.Client >= 0 {
		who = m.Clients[st.Client].Name
	}
	inside := make([]string, len(st.Inside))
	for i, c := range st.Inside {
		inside[i] = m.Clients[c].Name
	}
	line := fmt.Sprintf("t%-2d %-6s %-46s", st.Tick, who, st.What)
	if len(inside) > 0 {
		line += " inside: " + strings.Join(inside, " ")
	}
	return strings.TrimRight(line, " ")
}
