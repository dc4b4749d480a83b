package explore

import (
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// member of a handover: Old is a token lock, or what the options make of it, and New a token lock on another key.
func handoverClient(name string, options ...option) Client {
	c := client(model.Modern, name, append([]option{once}, options...))
	to := client(model.Modern, name, nil).Member
	to.Key, to.Lease, to.Patience = "n", c.Lease, c.Patience
	if c.Ignores {
		to.Lease *= 2
	}
	c.New = &to
	return c
}

func unchecked(c *Client) { c.Unchecked = true }
func outlives(c *Client)  { c.Outlives = true }
func ignores(c *Client)   { c.Ignores = true }
func omits(c *Client)     { c.Omits = true }
func onNew(c *Client)     { c.Key = "n" }
func bridgeOld(c *Client) { c.Scheme = model.Bridge }

// looks makes a member look at Old where it should take it, and New alone is taken.
func looks(c *Client) {
	c.Mutation = &model.Mutation{
		Step: func(_ *model.Session, _ *protocol.Command, _ protocol.Reply, next protocol.Step) protocol.Step {
			if next.Kind == protocol.Send && next.Command.Op == protocol.SetToken {
				next.Command.Op = protocol.Get
			}
			return next
		},
		Reply: func(_ *model.Session, sent *protocol.Command, heard protocol.Reply) protocol.Reply {
			switch {
			case sent.Op != protocol.Get:
			case heard.Kind == protocol.Nil:
				return protocol.Reply{Kind: protocol.Text, Text: "OK"}
			case heard.Kind == protocol.Text:
				return protocol.Reply{Kind: protocol.Nil}
			}
			return heard
		},
	}
}

// handoverClaims: a fleet moves from one lock to another by a stage in which everybody holds both; and the ways that people found by themselves.
func handoverClaims() []Claim {
	H, M := handoverClient, modernClient
	oldBoth := Handover{Start: stageOld, First: stageOld, Last: stageBoth, Moves: 2, Lease: 2}
	bothNew := Handover{Start: stageBoth, First: stageBoth, Last: stageNew, Moves: 2, Lease: 2}
	all := Handover{Start: stageOld, First: stageOld, Last: stageNew, Moves: 2, Lease: 2}
	back := Handover{Start: stageNew, First: stageOld, Last: stageNew, Moves: 2, Lease: 2}
	atOnce := func(h Handover) Handover { h.AtOnce = true; return h }
	mirror := Handover{Start: stageOld, First: stageOld, Last: stageNew, Moves: 1, Lease: 3, Mirrors: true}
	two := func(horizon Ticks, options ...option) *Model {
		return world(horizon, H("a", options...), H("b", options...))
	}
	return []Claim{
		{"HH-old-both", "H H", "stages old and both, forth and back; members are silent at any time, commands 1 late", Exclusive, 0,
			two(3, lease(2), delay(1)).handing(oldBoth)},
		{"HH-both-new", "H H", "as HH-old-both with stages both and new", Exclusive, 0,
			two(3, lease(2), delay(1)).handing(bothNew)},
		{"HH-old-both-silent", "H H", "stages old and both; one reply never comes, its command runs late or never", Exclusive, 0,
			two(3, lease(2)).handing(oldBoth).silences(1)},
		{"HH-both-new-silent", "H H", "as HH-old-both-silent with stages both and new", Exclusive, 0,
			two(3, lease(2)).handing(bothNew).silences(1)},
		{"HH-both-new-late", "H H", "stages both and new; commands of one member come at any time, after its lease too", Exclusive, 0,
			world(3, H("a", lease(2), delay(Unbounded)), H("b", lease(2))).handing(bothNew)},
		{"HH-forth", "H H", "from old by both to new; members are silent at any time, crash", Exclusive, 0,
			two(4, lease(2), crash).handing(all)},
		{"HH-back", "H H", "as HH-forth from new by both to old", Exclusive, 0,
			two(4, lease(2), crash).handing(back)},
		{"HH-forth-replies", "H H", "as HH-forth without a crash, and replies come 1 late", Exclusive, 0,
			two(2, lease(2), replyLate(1)).handing(all)},
		{"HH-bridge", "H H", "as HH-forth without a crash, and Old is a bridge's lock", Exclusive, 0,
			two(4, bridgeOld).handing(all)},
		{"HHH-forth", "H H H", "as HH-forth with three members and without a crash", Exclusive, 0,
			world(2, H("a", lease(2)), H("b", lease(2)), H("c", lease(2))).handing(all)},
		{"HM-old", "H M", "a process that only knows Old, at stages old and both; crash", Exclusive, 0,
			world(6, H("a", crash, lease(2)), M("s", lease(2))).handing(oldBoth)},
		{"HM-new", "H M", "as HM-old, and it is still there at stage new", Violated, 0,
			world(7, H("a"), M("s")).handing(all)},

		{"HH-at-once", "H H", "as HH-forth, but the stage moves without waiting for silent members", Violated, 0,
			two(6).handing(atOnce(all))},
		{"HH-outlives", "H H", "as HH-forth, but a holder goes on after its member's lease", Violated, 0,
			two(7, lease(5), outlives).handing(all)},
		{"HH-unchecked", "H H", "from new by both to old, commands 1 late; what was acquired is handed out whatever the record is by then: reports that count attempts are enough", Exclusive, 0,
			two(3, lease(2), delay(1), unchecked).handing(back)},
		{"HH-omits", "H H", "as HH-unchecked, but reports leave out attempts under way, and the check is made: it is enough", Exclusive, 0,
			two(3, lease(2), delay(1), omits).handing(back)},
		{"HH-omits-unchecked", "H H", "as HH-unchecked, and reports leave out attempts under way", Violated, 0,
			two(7, lease(5), delay(2), omits, unchecked).handing(back)},
		{"HM-one-half", "H M", "at stage both a holder goes on though it has lost Old; beside a process that only knows Old", Violated, 0,
			world(8, H("a", ignores, delay(1)), M("s")).handing(oldBoth)},

		{"HH-mirror", "H H", "take the active lock, copy it to the other one afterwards; the active one is changed for all at once", Violated, 0,
			two(6).handing(mirror)},
		{"HM-look", "H M", "look at both locks and take New alone; beside a process that only knows Old", Violated, 0,
			world(6, H("a", looks), M("s")).handing(Handover{Start: stageBoth, First: stageBoth, Last: stageBoth, Lease: 6})},
		{"MM-deploy-and-wait", "M M", "deploy, wait 6 ticks, and take New alone; one process was missed and takes Old", Violated, 0,
			world(10, M("a", turns(3)), M("b", onNew, from(6)))},
	}
}
