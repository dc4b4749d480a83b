package main

import (
	"fmt"
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// nextHandover leads from one lock to another.
func (s *standing) nextHandover(on *step, living int64, show string) {
	name := s.namespace
	move := func(verb string, to stages.Stage) string {
		return fmt.Sprintf("lockmigrate stage %s --namespace %s --to %v --wait --execute", verb, name, to)
	}
	switch stage := s.view.Record.Stage; {
	case living == 0 && (stage == stages.Old || stage == stages.Both && (s.certificate == "" || s.certErr != nil)):
		on.is("", show, "put package handover, with Options{Namespace: %q}, into every service that locks these keys, or a sidecar --handover beside it, and start them", name)
		on.blocked("no member lives: no service follows this record yet")
	case stage == stages.Old:
		on.is("", move("advance", stages.Both), "check that every process which locks these keys is a member, and move to both: the step does not wait for others")
		on.Costs = append(on.Costs, "each lock takes both halves, one after the other, until the next step; back by "+move("rollback", stages.Old))
	case stage == stages.Both && len(s.blockers) == 0:
		s.toNew(on, move("rollback", stages.Both))
	case stage == stages.New && len(s.view.Members) > 0:
		on.is("", show, "all members hold New alone; when no rollback is wanted any more, take package handover and Old out of the services, and delete the record when it has no member")
		on.Done = true
	case stage == stages.New && len(s.blockers) == 0:
		on.is("", fmt.Sprintf("lockmigrate stage delete --namespace %s --execute", name),
			"no member follows the record: delete it when no rollback is wanted any more")
		on.Done = true
	default:
		on.is("", show, "wait for the members above, or stop them")
	}
}

// toNew is stage both of a handover, whose members all run it: nobody else may lock by Old any more.
func (s *standing) toNew(on *step, back string) {
	name, old := s.namespace, s.view.Record.Handover.Old
	shown := func(m stages.Member) bool { return len(m.Info.Connections) > 0 }
	s.named(on, s.certificate, func(c verify.Client) string { return "no member: " + c.String() })
	on.Costs = append(on.Costs, "at stage new nobody keeps out a process that locks by Old alone; back by "+back)
	switch {
	case s.certificate != "" && s.certErr == nil:
		on.is("", fmt.Sprintf("lockmigrate stage advance --namespace %s --to new --certificate %s --wait --execute", name, shellWord(s.certificate)), "only members lock by Old: move to new")
	case old.Mark == "" && !slices.ContainsFunc(s.view.Members, shown):
		on.is("", fmt.Sprintf("lockmigrate stage advance --namespace %s --to new --force \"\" --wait --execute", name),
			"make sure that no process locks by Old, %v, alone: say in --force how you know, and move to new", old)
	default:
		if s.certErr != nil {
			on.blocked("%s", s.certErr)
		}
		do := "show that nobody but the members locks by Old. How long a process that does may be silent you have to state: --longest-silence 25h where its job runs once a day, and --for longer than that. URL is Old's server"
		if len(s.seen) > 0 {
			do = "make members of those that are named, or stop them, and look again"
		}
		on.is("", fmt.Sprintf("lockmigrate verify --only-members --namespace %s --old URL --longest-silence HOW-LONG --for LONGER --out %s", name, certificateName(name)), "%s", do)
		on.Costs = append(on.Costs, "verify runs MONITOR on Old's server for the whole window")
	}
}
