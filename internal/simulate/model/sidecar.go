package model

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// sidecar is what a record says of one sidecar, see sidecar_shared.lua.
type sidecar struct {
	token, place  string
	until, settle int64
	since, stands int64
	timed         int64
	text          string
}

// remembered reads the record of the command's sidecar.
func (c *call) remembered() sidecar {
	s := sidecar{token: "-", place: "-"}
	i := c.find(c.command.Record)
	if i < 0 {
		return s
	}
	for _, f := range c.entries[i].Fields {
		name, field, _ := strings.Cut(f.Name, " ")
		if name != c.command.Sidecar.Name {
			continue
		}
		part := strings.SplitN(field, " ", 8)
		s.token, s.place, s.text = part[0], part[3], part[7]
		for i, n := range []*int64{1: &s.until, 2: &s.since, 4: &s.settle, 5: &s.stands, 6: &s.timed} {
			if n != nil {
				*n, _ = strconv.ParseInt(part[i], 10, 64)
			}
		}
	}
	return s
}

// remember writes it, for at least so long.
func (c *call) remember(s *sidecar, ms int64) {
	record := c.command.Record
	field := Field{Name: fmt.Sprintf("%s %s %d %d %s %d %d %d %s", c.command.Sidecar.Name, s.token, s.until, s.since, s.place, s.settle, s.stands, s.timed, s.text)}
	i := c.find(record)
	if i < 0 {
		c.Put(Entry{Key: record, Kind: Hash, Fields: []Field{field}, ExpireMS: c.ms + ms})
		return
	}
	others := slices.DeleteFunc(slices.Clone(c.entries[i].Fields), c.isOurs)
	c.entries[i].Fields = append(others, field)
	c.entries[i].ExpireMS = max(c.entries[i].ExpireMS, c.ms+ms)
}

func (c *call) isOurs(f Field) bool {
	return strings.HasPrefix(f.Name, c.command.Sidecar.Name+" ")
}

// dropped is drop of sidecar_shared.lua.
func (c *call) dropped(s *sidecar) {
	if s.token, s.text = "-", ""; s.place != "-" {
		c.remember(s, 1)
		return
	}
	if i := c.find(c.command.Record); i >= 0 {
		c.entries[i].Fields = slices.DeleteFunc(slices.Clone(c.entries[i].Fields), c.isOurs)
		if len(c.entries[i].Fields) == 0 {
			c.remove(c.command.Record)
		}
	}
}

// whose is the function of sidecar_shared.lua.
func (c *call) whose(s *sidecar) string {
	owner, guarded := c.text(c.command.Guard)
	switch i := c.find(c.command.Key); {
	case i < 0:
		return "none"
	case c.entries[i].Kind != String:
		return "raw"
	case c.entries[i].Value == s.token:
		return "mine"
	case c.entries[i].Value == s.place:
		return "kept"
	case guarded && c.entries[i].Value == owner, c.entries[i].ExpireMS != 0 && isToken(c.entries[i].Value):
		return "theirs"
	}
	return "raw"
}

func isToken(value string) bool {
	if len(value) == 10 && strings.HasPrefix(value, "\xf6\x82") && value[8] >= 69 && value[8] < 128 {
		return true
	}
	notDigit := func(r rune) bool { return r < '0' || r > '9' }
	return slices.ContainsFunc(strings.FieldsFunc(value, notDigit), func(n string) bool { return len(n) == 19 && n > "5" && n < "92" })
}

// sidecarTake is sidecar_take.lua.
func sidecarTake(c *call) protocol.Reply {
	cmd, side := c.command, c.command.Sidecar
	refused := func() protocol.Reply {
		switch side.Form {
		case protocol.FormSetNX, protocol.FormTimed, protocol.FormWait:
			return integer(0)
		case protocol.FormTakes, protocol.FormLoses:
			return text(side.Far)
		}
		return protocol.Reply{Kind: protocol.Nil}
	}
	granted := func() protocol.Reply {
		switch side.Form {
		case protocol.FormSetNX, protocol.FormTimed:
			return integer(1)
		case protocol.FormSet:
			return text("OK")
		}
		return protocol.Reply{Kind: protocol.Nil}
	}
	ttl := cmd.TTL.Milliseconds()
	swaps := side.Form == protocol.FormTakes || side.Form == protocol.FormLoses
	if c.late() || ttl == 0 && !swaps {
		return refused()
	}
	ended := ttl == 0
	ttl = max(ttl, 1)
	s := c.remembered()
	owner, guarded := c.text(cmd.Guard)
	seen, there := c.text(cmd.Key)
	keeps := cmd.Claim.Milliseconds() + ttl
	take := func(token string) {
		s.token, s.until, s.text, s.since, s.place, s.settle, s.stands, s.timed = token, int64(side.Until)/1e6, side.Text, c.ms, "-", 0, 0, 0
		if side.Form == protocol.FormTimed {
			s.timed = 1
		}
		c.remember(&s, keeps)
		c.write(cmd.Guard, token, ttl)
		c.write(cmd.Key, token, ttl)
	}
	if swaps {
		switch whose := c.whose(&s); {
		case whose == "mine":
			before := s.text
			s.text, s.until, s.timed = side.Text, int64(side.Until)/1e6, 0
			c.remember(&s, keeps)
			c.expire(cmd.Guard, time.Duration(ttl)*time.Millisecond)
			c.expire(cmd.Key, time.Duration(ttl)*time.Millisecond)
			return text(before)
		case whose == "raw" && c.entries[c.find(cmd.Key)].Kind != String:
			return fault(wrongType)
		case whose == "raw":
			if _, legacy := c.expiry(seen); guarded && owner != s.token && owner != "breath" || legacy && c.pttl(cmd.Key) < 0 {
				return text(side.Far)
			}
			if due, legacy := c.expiryIn(side.Unit, side.Layout, seen); legacy && cmd.Grace >= 0 && c.ms > due+cmd.Grace.Milliseconds() {
				take(cmd.Value)
			} else {
				c.write(cmd.Key, side.Text, 0)
			}
			return text(seen)
		case whose == "theirs", side.Form == protocol.FormLoses, ended:
			return text(side.Far)
		}
	}
	place := s.place
	if place == "-" {
		place = ""
	}
	owns, stands := guarded && owner == place, there && seen == place
	claim := cmd.Claim.Milliseconds()
	entry := func() string {
		return protocol.Entry{Claim: cmd.Claim, Until: protocol.Instant(s.stands * int64(time.Millisecond)), Guarded: true, Channel: protocol.SidecarChannel(side.Name), Token: place}.String()
	}
	var state *gaps
	if c.yieldsOn() {
		state = c.recall()
	}
	waits := func() protocol.Reply {
		if cmd.Queue == "" || place != "" && s.stands > c.ms+claim {
			return refused()
		}
		stood := ""
		if place != "" && s.stands > 0 {
			stood = entry()
		}
		place = cmp.Or(place, cmd.Value)
		s.place, s.stands = place, c.ms+2*claim
		if cmd.NotAfter != 0 {
			s.stands = min(s.stands, int64(cmd.NotAfter)/int64(time.Millisecond))
		}
		c.remember(&s, keeps)
		c.expire(cmd.Queue, time.Duration(keeps)*time.Millisecond)
		if stood != "" && c.place(stood) >= 0 && c.place(entry()) < 0 {
			c.rename(stood, entry())
		}
		if c.place(entry()) < 0 {
			c.enter(entry())
			c.limit(cmd.Queue, keeps)
		}
		return refused()
	}
	withdraw := func() protocol.Reply {
		if owns {
			c.remove(cmd.Guard)
		}
		s.settle = 0
		return waits()
	}
	if guarded && !owns {
		return waits()
	}
	over := false
	if owns && there && overwritten(c, seen) {
		there = false
	}
	switch {
	case there && !stands:
		if c.entries[c.find(cmd.Key)].Kind != String || c.pttl(cmd.Key) >= 0 {
			return withdraw()
		}
		due, ok := c.expiry(seen)
		if ok && state != nil {
			state.oldTurn()
		}
		if !ok || cmd.Grace < 0 || c.ms <= due+cmd.Grace.Milliseconds() {
			return withdraw()
		}
		over = true
	case !there && !owns:
		if state != nil && state.keepsOff(c.queued()) > 0 {
			return waits()
		}
		if head := c.head(); head != "" && !(place != "" && head == entry()) {
			if given, _ := c.grant(cmp.Or(place, cmd.Value), true); given {
				return waits()
			}
		}
	}
	settles := s.settle > 0 && (owns || stands)
	careful := side.Free && side.Settle >= time.Millisecond
	ready := stands && (s.settle == 0 && !careful || s.settle > 0 && owns && c.ms >= s.settle)
	wait, slow := side.Form == protocol.FormWait, over || settles || careful
	if ready && wait {
		return integer(1)
	}
	if settle := side.Settle.Milliseconds(); !ready && (slow || wait) {
		if settles && owns && stands {
			return refused()
		}
		place = cmp.Or(place, cmd.Value)
		if s.place, s.settle = place, c.ms; slow {
			s.settle += settle
		}
		c.remember(&s, keeps)
		claim = max(claim, 2*settle)
		c.write(cmd.Guard, place, claim)
		c.write(cmd.Key, place, claim)
		if !slow {
			return integer(1)
		}
		return refused()
	}
	if place != "" && s.stands > 0 && cmd.Queue != "" {
		c.unqueue(entry())
	}
	token := cmd.Value
	if ready {
		token = place
	}
	take(token)
	return granted()
}

// limit gives a key that has no TTL one.
func (c *call) limit(key string, ms int64) {
	if i := c.find(key); i >= 0 && c.entries[i].ExpireMS == 0 {
		c.entries[i].ExpireMS = c.ms + ms
	}
}

// sidecarGet is sidecar_get.lua.
func sidecarGet(c *call) protocol.Reply {
	cmd, side := c.command, c.command.Sidecar
	s := c.remembered()
	switch c.whose(&s) {
	case "mine":
		return text(s.text)
	case "none", "kept":
		return protocol.Reply{Kind: protocol.Nil}
	case "theirs":
		return text(side.Far)
	}
	seen := c.read(cmd.Key)
	if due, ok := c.expiry(seen.Text); ok && due < int64(side.Now)/1e6 && c.pttl(cmd.Key) < 0 {
		return text(side.Far)
	}
	return seen
}

// sidecarDel is sidecar_del.lua.
func sidecarDel(c *call) protocol.Reply {
	cmd := c.command
	s := c.remembered()
	owner, guarded := c.text(cmd.Guard)
	ours := guarded && owner == s.token
	if whose := c.whose(&s); whose != "mine" {
		freed := int64(0)
		if whose == "raw" {
			c.remove(cmd.Key)
			freed = 1
		}
		if ours {
			c.remove(cmd.Guard)
		}
		if s.token != "-" {
			c.dropped(&s)
		}
		return integer(freed)
	}
	// What follows is a release as of a bridge holder's.
	drop := *cmd
	drop.Op, drop.Value, drop.Behind, drop.Held = protocol.BridgeDrop, s.token, 0, time.Duration(max(0, c.ms-s.since))*time.Millisecond
	c.command = &drop
	contended, handed := c.queued() > 0 || c.yieldsOn() && c.recall() != nil, false
	if !(ours && c.yieldsOn() && contended && c.yields(c.queued())) {
		given, withGuard := c.grant("", false)
		if handed = given; given && !withGuard && ours {
			c.remove(cmd.Guard)
		}
	}
	c.command = cmd
	if !handed {
		c.remove(cmd.Key)
		if ours && cmd.Breath >= time.Millisecond {
			c.write(cmd.Guard, "breath", cmd.Breath.Milliseconds())
		} else if ours {
			c.remove(cmd.Guard)
		}
	}
	c.dropped(&s)
	return integer(1)
}

// sidecarKeep is sidecar_keep.lua.
func sidecarKeep(c *call) protocol.Reply {
	cmd := c.command
	if c.late() {
		return fault(refusal)
	}
	s := c.remembered()
	mine := s.token
	owner, guarded := c.text(cmd.Guard)
	seen, there := c.text(cmd.Key)
	owns, stands := guarded && owner == mine, there && seen == mine
	switch {
	case mine != "-" && (owns || stands):
	case there && c.pttl(cmd.Key) < 0:
		return integers(protocol.KeepOld, 0, 0)
	case mine == "-":
		return integers(protocol.KeepNothing, 0, 0)
	default:
		c.dropped(&s)
		return integers(protocol.KeepNothing, 1, 0)
	}
	left := c.pttl(cmd.Key)
	if owns {
		left = c.pttl(cmd.Guard)
	}
	left = max(left, 1)
	if owns && there && !stands {
		return protocol.Reply{Kind: protocol.Integer, Int: protocol.KeepTheirs, Int2: left, Text: seen}
	}
	if ttl := cmd.TTL.Milliseconds(); s.until == 0 && s.timed == 0 && ttl > 0 {
		c.remember(&s, 3*ttl)
		left = ttl
		if owns {
			c.expire(cmd.Guard, cmd.TTL)
		}
		if stands {
			c.expire(cmd.Key, cmd.TTL)
		}
	}
	switch {
	case stands && (owns || mine == s.text):
		return protocol.Reply{Kind: protocol.Integer, Int: protocol.KeepDone, Int2: left, Text: mine}
	case owns:
		c.write(cmd.Key, mine, left)
	default:
		c.write(cmd.Guard, mine, left)
	}
	return protocol.Reply{Kind: protocol.Integer, Int: protocol.KeepRepair, Int2: left, Text: mine}
}

// sidecarRun is sidecar_run.lua in its mode run, of a command that the model knows.
func sidecarRun(c *call) protocol.Reply {
	cmd := c.command
	key, guard := cmd.Key, cmd.Guard
	s := c.remembered()
	owner, guarded := c.text(guard)
	whose := c.whose(&s)
	if whose == "none" && guarded && owner != "breath" && owner != s.place {
		c.write(key, owner, max(c.pttl(guard), 1))
		whose = c.whose(&s)
	}
	left := max(c.pttl(key), 1)
	switch {
	case whose == "kept":
		c.remove(key)
	case whose == "mine" && s.timed == 1:
		c.write(key, s.text, left)
	case whose == "mine":
		c.write(key, s.text, 0)
	}
	c.command = cmd.Sidecar.Runs
	reply := operations[c.command.Op].run(c)
	c.command = cmd
	now, there := c.text(key)
	lasts := c.pttl(key)
	switch {
	case whose == "mine" && there && now == s.text:
		if lasts >= 0 {
			left, s.timed = max(lasts, 1), 1
		} else if s.timed == 1 {
			if left, s.timed = cmd.TTL.Milliseconds(), 0; s.until != 0 {
				left = max(s.until-int64(cmd.Sidecar.Now)/1e6, 1)
			}
		}
		c.write(key, s.token, left)
		if guarded && owner == s.token {
			c.expire(guard, time.Duration(left)*time.Millisecond)
		}
		c.remember(&s, left)
	case whose == "mine" || whose == "raw" && guarded && owner == s.token && c.find(key) < 0:
		if guarded && owner == s.token {
			c.remove(guard)
		}
		c.dropped(&s)
	case whose == "raw" && guarded && owner == s.token && there && lasts >= 0:
		c.expire(guard, time.Duration(max(lasts, 1))*time.Millisecond)
	case whose == "kept" && !there:
		c.write(key, s.place, left)
	case whose == "kept":
		if guarded && owner == s.place {
			c.remove(guard)
		}
		s.place, s.settle, s.stands = "-", 0, 0
		c.dropped(&s)
	}
	if there && whose != "theirs" && c.whose(&s) == "theirs" {
		if guarded && owner == s.token {
			c.remove(guard)
		}
		s.token, s.text, s.until, s.timed = now, now, 0, 1
		c.remember(&s, lasts)
	}
	return reply
}
