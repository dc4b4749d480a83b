package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// step is what to do next.
type step struct {
	Stands  string   `json:"stands_at"`
	InWay   []string `json:"in_the_way"`
	Do      string   `json:"do"`
	Command string   `json:"command,omitempty"`
	Costs   []string `json:"costs"`
	Read    string   `json:"read"` // a chapter
	Done    bool     `json:"done"`
}

// is sets the chapter of the runbook, the command, and in words what to do.
func (on *step) is(chapter, command, do string, args ...any) {
	on.Read, on.Command, on.Do = "docs/runbook.md, "+chapter, command, fmt.Sprintf(do, args...)
}

// blocked adds what is in the way.
func (on *step) blocked(format string, args ...any) {
	on.InWay = append(on.InWay, fmt.Sprintf(format, args...))
}

// next is the runbook as a function of the facts.
func (s *standing) next() step {
	on := s.step()
	on.Command += s.server
	return on
}

func (s *standing) step() step {
	if s.view == nil {
		return s.begin()
	}
	r, members := s.view.Record, s.view.Members
	on := step{Stands: fmt.Sprintf("%v, epoch %d, for %s", r.Stage, r.Epoch, short(s.view.Now.Sub(r.Since))), InWay: []string{}, Costs: []string{}}
	for _, b := range s.blockers {
		on.blocked("%s", b)
	}
	living, unfit := int64(len(s.view.Living())), int64(0)
	for _, m := range s.view.Living() {
		if m.Misfit != "" {
			unfit++
		}
	}
	show := "lockmigrate stage --namespace " + s.namespace
	last, late := !stages.Valid(r.Stage+1), changingOver(*s.view)
	switch {
	case unfit > 0:
		on.is("step 2", show, "correct or stop %s: they cannot run this record and acquire nothing", counted(unfit, "member"))
	case errors.Is(s.certErr, verify.ErrFuture):
		on.blocked("%s", s.certErr)
		on.is("step 5", "lockmigrate next --namespace "+s.namespace, "set this host's clock, or remove %s: no newer certificate counts beside it", s.certificate)
	case last && late != "":
		on.blocked("%s", late)
		on.is("step 7", show, "wait for them: until then the stage before may still act")
	case r.Handover != nil:
		s.nextHandover(&on, living, show)
	case r.Stage == stages.Legacy && living == 0:
		on.is("step 2", show, "put package compat, with Options{Namespace: %q}, into every Go service, and start them", s.namespace)
		on.blocked("no member lives: no Go service follows this record yet")
	case r.Stage == stages.Legacy:
		on.is("step 3", fmt.Sprintf("lockmigrate stage advance --namespace %s --to bridge --wait --execute", s.namespace),
			"check that each process of every Go service is a member, and move to bridge: the step does not wait for others")
		on.Costs = append(s.waits(), whatToKnow[[2]stages.Stage{stages.Legacy, stages.Bridge}]...)
	case s.keys.trusted() != nil: // what stands on the keys is not known: no step may rest on it
		on.blocked("%s", s.keys.trusted())
		on.is("step 0", "lockmigrate doctor"+matchFlags(r.Patterns), "%s", hintOf(s.keys.trusted()))
	case r.Stage == stages.Bridge:
		s.toModern(&on, show, living)
	case s.keysErr != nil:
		s.sweep(&on)
	case s.evidence() == "":
		on.blocked("inconclusive: an old client that is idle holds nothing, and nobody has shown that none is left: the step rests on %q, and next looks at the keys and the members alone. If you know it in another way, lockmigrate stage delete ends the migration", r.Note)
		s.toModern(&on, show, living)
	case len(members) > 0:
		on.is("The end", show, "the keys are migrated, as far as somebody has looked: %s. The record has %s. Services may go from package compat to package modern when it suits them. Delete it when it has none", s.evidence(), counted(int64(len(members)), "member"))
		on.Done = true
	default:
		on.is("The end", fmt.Sprintf("lockmigrate stage delete --namespace %s --execute", s.namespace), "the keys are migrated, as far as somebody has looked: %s. No member follows the record. Delete it: there is no way back without it", s.evidence())
		on.Done = true
	}
	if r.Handover != nil {
		on.Read = "docs/handover.md"
	}
	return on
}

// evidence says what has shown that no old client is left: a certificate, or else the one that the step to modern rests on, if nobody was seen since and
// the record knows of no longer silence. Empty: nothing has.
func (s *standing) evidence() string {
	r := s.view.Record
	rests, by := strings.CutPrefix(r.Note, byCertificate)
	_, said, _ := strings.Cut(rests, longestSaid)
	longest, err := time.ParseDuration(said)
	switch {
	case s.certificate != "" && s.certErr == nil:
		return s.certificate
	case by && err == nil && longest >= r.Silence() && len(s.seen) == 0 && (s.saved == nil || len(s.saved.Evidence.Seen) == 0):
		return r.Note
	}
	return ""
}

// patterns are the keys that a record is to be about, nil where nobody has named them.
func (s *standing) patterns() []string {
	switch {
	case len(s.match) > 0:
		return s.match
	case s.profile != nil && len(s.profile.Match) > 0:
		return stages.UnescapeAll(s.profile.Match)
	case s.known != nil:
		return s.known.Patterns
	}
	return nil
}

// begin is what comes before there is a record.
func (s *standing) begin() step {
	on := step{Stands: "there is no record", InWay: []string{}, Costs: []string{}}
	if s.reserved {
		on.blocked("its keys are reserved: a stage init or stage delete was stopped, or the record was lost (docs/what-if.md)")
	} else if s.others != "" {
		on.Stands += " of this name; this server has " + s.others
	}
	if s.deleted > 0 {
		on.blocked("a record of this name was deleted at epoch %d: where its migration was done, there is nothing left to do", s.deleted)
	}
	if s.deleted == 0 && s.certificate != "" {
		on.blocked("%s is about a record of this name: if this server has lost it, docs/what-if.md says when and at which stage to create it again", s.certificate)
	}
	match := s.patterns()
	if len(match) == 0 {
		match = []string{aPattern}
	}
	measured := s.profile != nil && s.oldErr == nil
	if s.known != nil && s.refused == nil && !(measured && s.certificate == "") {
		s.again(&on, match)
		return on
	}
	length, do := "10m", "watch the traffic: which clients lock, in which dialect, for how long, and with which clock"
	switch {
	case s.profile == nil:
	case measured:
		create := fmt.Sprintf("lockmigrate stage init --namespace %s%s --profile %s", s.namespace, matchFlags(match), shellWord(s.profileFile))
		if s.refused != nil {
			on.blocked("%s", s.refused)
			on.is("step 1", create, "%s", hintOf(s.refused))
			return on
		}
		on.is("step 1", create+" --execute", "create the record, at stage legacy: nothing changes for anybody")
		return on
	default:
		on.blocked("%s", s.oldErr)
		do = "watch again, for longer, and while every old client works; or give stage init what you know of them (docs/runbook.md, step 1)"
		if s.profile.Window.Seconds >= 200 {
			length = strings.TrimSuffix((3 * time.Duration(s.profile.Window.Seconds) * time.Second).Round(time.Minute).String(), "0s")
		}
	}
	on.is("step 0", fmt.Sprintf("lockmigrate observe%s --for %s --profile %s", matchFlags(match), length, shellWord(s.profileFile)), "%s", do)
	on.Costs = []string{"MONITOR sends a copy of every command: it can halve a busy server's throughput while it runs; observe ends by itself above --max-load"}
	return on
}

// again creates a record that was lost. What is not known of it is a hole, so that the command fails until somebody has thought.
func (s *standing) again(on *step, match []string) {
	clients := "--dialect NAME --shortest-lease HOW-LONG"
	if s.profile != nil && s.oldErr == nil {
		clients = "--profile " + shellWord(s.profileFile)
	}
	if s.known.Longest > 0 {
		clients += " --longest-silence " + s.known.Longest.String()
	}
	stage := "STAGE"
	if s.known.Stage == stages.Bridge { // both neighbours can be beside it
		stage = "bridge"
	}
	on.is("step 1", fmt.Sprintf("lockmigrate stage init --namespace %s%s %s --stage %s --execute", s.namespace, matchFlags(match), clients, stage),
		"create the record again as it was: docs/what-if.md says at which stage, and for how long to wait before. The services' options have the dialect and the shortest lease; who watches now sees only those old clients that are left")
}

// toModern is stage bridge: the old clients go, evidence that they have gone, what they left, the move.
func (s *standing) toModern(on *step, show string, living int64) {
	r, state := s.view.Record, stateName(certificateName(s.namespace))
	held, _, first := s.keys.these(heldKind)
	var late []string
	for _, m := range s.view.Members {
		if m.Lowest == stages.Legacy || m.Stage == stages.Legacy {
			late = append(late, m.ID)
		}
	}
	certified, source := s.certificate != "" && s.certErr == nil, s.certificate
	if s.saved != nil && !certified { // an old state beside a newer certificate does not count
		if known := s.saved.Evidence; s.running || len(known.Seen) > 0 {
			s.seen, source = known.Seen, state
		}
	}
	switch {
	case len(late) > 0: // verify would see them, whatever the window
		on.is("step 3", show, "wait: %s may still run stage legacy, or hold its locks (%s)", counted(int64(len(late)), "member"), strings.Join(late[:min(3, len(late))], ", "))
	case s.keys.endless.n > 0:
		s.stays(on)
	case held > 0:
		on.blocked("old clients hold %s: %s", counted(held, "lock"), listKeys(first, held, true))
		on.is("step 4", fmt.Sprintf("lockmigrate observe%s --for 10m", matchFlags(r.Patterns)),
			"move the old clients, one service at a time: put a sidecar beside those that nobody will change (docs/sidecar.md), port the others. This names them. A value that is nobody's: docs/what-if.md")
	case s.saved != nil && !certified && s.running:
		s.named(on, source, whatToDoAbout)
		on.is("step 5", "lockmigrate next --namespace "+s.namespace, "a verify is looking (process %d on %s), and has looked for %v of %v. Wait for its end", s.saved.PID, s.saved.Host,
			time.Duration(s.saved.Evidence.LookedSeconds)*time.Second, s.saved.Options.Window)
	case living == 0 && !certified:
		on.blocked("no member lives, and verify says none-seen only while one reports")
		on.is("step 2", show, "start the Go services, or the sidecars, that follow this record")
	case s.saved != nil && !certified && len(s.saved.Evidence.Seen) == 0 && len(s.saved.Lost()) == 0:
		looked := time.Duration(s.saved.Evidence.LookedSeconds * float64(time.Second)).Round(time.Second)
		on.blocked("a verify was ended after %v of %v", looked, s.saved.Options.Window)
		on.is("step 5", "lockmigrate verify --resume "+state, "go on with it. Where a command ran in between that writes, its window begins again")
	case len(s.seen) > 0:
		on.blocked("%s has seen old clients", source)
		s.named(on, source, whatToDoAbout)
		on.is("step 4", s.verify(), "deal with each of them, and then look again")
		on.Costs = []string{verifyCosts}
	case !certified:
		do := "no old client holds a lock at this moment. "
		if n := int64(len(s.profile.Old())); n > 0 { // they may have moved since
			do += fmt.Sprintf("Move the %s that %s names (docs/runbook.md, step 4). Then prove", counted(n, "old client"), s.profileFile)
		} else {
			do += "Prove"
		}
		do += " that none is left"
		if r.Longest == 0 {
			do += ". How long one may be silent you have to state: --longest-silence 25h where its job runs once a day, and --for longer than that"
		}
		if s.certErr != nil {
			on.blocked("%s", s.certErr)
		}
		on.is("step 5", s.verify(), "%s", do)
		on.Costs = []string{verifyCosts}
	case s.keysErr != nil:
		s.sweep(on)
	default:
		on.is("steps 6 and 7", fmt.Sprintf("lockmigrate stage advance --namespace %s --to modern --certificate %s --wait --execute", s.namespace, shellWord(s.certificate)),
			"shut the door with a fence, if the server has users (lockmigrate fence names them), and move to modern")
		on.Costs = whatToKnow[[2]stages.Stage{stages.Bridge, stages.Modern}]
	}
}

// sweep is where legacy values keep a namespace from modern.
func (s *standing) sweep(on *step) {
	on.blocked("%s", s.keysErr)
	switch held, _, _ := s.keys.these(heldKind); {
	case s.keys.endless.n > 0:
		s.stays(on)
		return
	case held > 0 && s.view.Record.Stage == stages.Modern:
		on.is("Going back, at any time", fmt.Sprintf("lockmigrate stage rollback --namespace %s --to bridge --wait --execute", s.namespace),
			"an old client locks at stage modern, where a crash of it blocks its key. Go back, find it by lockmigrate observe, and prove anew that none is left")
		return
	}
	on.is("step 6", fmt.Sprintf("lockmigrate sweep%s --ghost-after 1m --execute", matchFlags(s.view.Record.Patterns)), "remove what dead old clients have left")
}

// stays is where values without a TTL stand, which neither an old client nor a member takes over.
func (s *standing) stays(on *step) {
	n := s.keys.endless.n
	on.blocked("values without a TTL stand on %s, and verify takes each for a lock that is held: %s", counted(n, "key"), listKeys(s.keys.endless.first, n, false))
	on.is("step 6", fmt.Sprintf("lockmigrate sweep%s --tokens", matchFlags(s.view.Record.Patterns)),
		"find out whose they are. This shows which of them --execute would give a TTL; delete the others, or leave their keys out of the patterns (docs/what-if.md)")
}

// named puts those whom a file has seen in the way, each as say has it.
func (s *standing) named(on *step, source string, say func(verify.Client) string) {
	for i, c := range s.seen {
		if i == mostClients {
			on.blocked("and %d more: %s names them", len(s.seen)-i, source)
			return
		}
		on.blocked("%s", say(c))
	}
}

const verifyCosts = "--monitor runs MONITOR for the whole window; docs/operator.md says when you can do without"

// verify is the command that proves it. How long an old client may be silent is the operator's statement: where the record does not have it, the
// command has a hole, so that it fails until somebody has thought.
func (s *standing) verify() string {
	silence := "--longest-silence HOW-LONG --for LONGER"
	if longest := s.view.Record.Longest; longest > 0 {
		silence = "--for " + strings.TrimSuffix(strings.TrimSuffix((longest+max(longest/20, time.Minute)).Round(time.Second).String(), "0s"), "0m")
	}
	return fmt.Sprintf("lockmigrate verify --namespace %s %s --monitor --out %s", s.namespace, silence, certificateName(s.namespace))
}

// whatToDoAbout says who an old client is, and what to do about it.
func whatToDoAbout(c verify.Client) string {
	who := c.Who()
	keys := ""
	if len(c.Keys) > 0 {
		keys = fmt.Sprintf(" on %q", c.Keys[0])
	}
	do := ". Restart this Go service, or stop it: lockmigrate stage shows it"
	switch source, _, _ := strings.Cut(c.Evidence, ":"); source {
	case "MONITOR", "capture":
		do = keys + ". Put a sidecar beside this service (docs/sidecar.md), or port it"
	case "ACL LOG":
		do = keys + ". The fence stopped it: port it, put a sidecar beside it, or switch it off"
	case "census":
		who, do = "nobody was named", keys+". lockmigrate observe while it works names the client"
	}
	return who + ": " + c.Evidence + do
}

// waits says what the old clients waited when the profile was measured.
func (s *standing) waits() (lines []string) {
	for _, c := range s.profile.Old() {
		for _, u := range c.Uses {
			at := func(share float64) time.Duration { return time.Duration(u.Wait.At(share) * float64(time.Millisecond)) }
			if at(0.9) >= 10*time.Millisecond {
				lines = append(lines, fmt.Sprintf("when measured, %s waited %s at the median for %s, and one time in ten longer than %s", c.Name, short(at(0.5)), u.Family, short(at(0.9))))
			}
		}
	}
	return lines
}
