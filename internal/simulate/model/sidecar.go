package model

import (
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
	owed          []int64
	text          string
}

func (s *sidecar) held() string {
	switch s.token {
	case "=":
		return s.text
	case "-":
		return "" // no client writes that
	}
	return s.token
}

// past is the function of sidecar_shared.lua.
func (c *call) past(s *sidecar) bool {
	return s.token == "=" && s.until != 0 && s.until < int64(c.command.Sidecar.Now)/1e6 && c.pttl(c.command.Key) >= 0
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
		for i, n := range []*int64{1: &s.until, 2: &s.since, 4: &s.settle, 5: &s.stands} {
			if n != nil {
				*n, _ = strconv.ParseInt(part[i], 10, 64)
			}
		}
		for _, at := range strings.Split(part[6], ",") {
			if n, err := strconv.ParseInt(at, 10, 64); err == nil {
				s.owed = append(s.owed, n)
			}
		}
	}
	return s
}

// remember writes it, for at least so long.
func (c *call) remember(s *sidecar, ms int64) {
	record := c.command.Record
	owed := ""
	for _, at := range s.owed {
		owed += strconv.FormatInt(at, 10) + ","
	}
	if owed == "" {
		owed = "-"
	}
	field := Field{Name: fmt.Sprintf("%s %s %d %d %s %d %d %s %s", c.command.Sidecar.Name, s.token, s.until, s.since, s.place, s.settle, s.stands, owed, s.text)}
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

func (c *call) forgetSidecar() {
	if i := c.find(c.command.Record); i >= 0 {
		c.entries[i].Fields = slices.DeleteFunc(slices.Clone(c.entries[i].Fields), c.isOurs)
		if len(c.entries[i].Fields) == 0 {
			c.remove(c.command.Record)
		}
	}
}

func (c *call) giveUp(s *sidecar) {
	for len(s.owed) > 0 && s.owed[0] < c.ms {
		s.owed = s.owed[1:]
	}
}

// sidecarTake is sidecar_take.lua.
func sidecarTake(c *call) protocol.Reply {
	cmd, side := c.command, c.command.Sidecar
	refused := func() protocol.Reply {
		switch side.Form {
		case protocol.FormSetNX, protocol.FormWait:
			return integer(0)
		case protocol.FormTakes:
			return text(side.Far)
		}
		return protocol.Reply{Kind: protocol.Nil}
	}
	granted := func() protocol.Reply {
		switch side.Form {
		case protocol.FormSetNX:
			return integer(1)
		case protocol.FormSet:
			return text("OK")
		}
		return protocol.Reply{Kind: protocol.Nil}
	}
	ttl := cmd.TTL.Milliseconds()
	if c.late() || ttl == 0 {
		return refused()
	}
	s := c.remembered()
	owner, guarded := c.text(cmd.Guard)
	seen, there := c.text(cmd.Key)
	if held := s.held(); side.Once && held != "" && s.text == side.Text && (there && seen == held || !there && guarded && owner == held) {
		return granted()
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
	keeps := claim + side.Owes.Milliseconds() + ttl
	var state *gaps
	if c.yieldsOn() {
		state = c.recall()
	}
	waits := func() protocol.Reply {
		if cmd.Queue == "" || side.Plain || place != "" && s.stands > c.ms+claim {
			return refused()
		}
		stood := ""
		if place != "" && s.stands > 0 {
			stood = entry()
		}
		if place == "" {
			place = cmd.Value
		}
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
			own := place
			if own == "" {
				own = cmd.Value
			}
			if given, _ := c.grant(own, true); given {
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
		if place == "" {
			place = cmd.Value
		}
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
	c.giveUp(&s)
	if owes := side.Owes.Milliseconds(); owes > 0 {
		s.owed = append(s.owed, c.ms+owes)
	}
	s.token, s.until, s.text, s.since, s.place, s.settle, s.stands = cmd.Value, int64(side.Until)/1e6, side.Text, c.ms, "-", 0, 0
	if ready {
		s.token = place
	}
	c.remember(&s, keeps)
	if s.token != "=" {
		c.write(cmd.Guard, s.token, ttl)
	}
	c.write(cmd.Key, s.held(), ttl)
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
	seen := c.read(cmd.Key)
	far := text(side.Far)
	switch {
	case seen.Kind == protocol.Nil && (side.Form == protocol.FormLoses || side.Form == protocol.FormExtend):
		return far
	case seen.Kind != protocol.Text:
		return seen
	}
	s := c.remembered()
	switch {
	case seen.Text != s.held():
		if side.Form == protocol.FormRaw {
			return seen
		}
		return far
	case s.until != 0 && s.until < int64(side.Now)/1e6, side.Form == protocol.FormLoses:
		return far
	case side.Form != protocol.FormExtend:
		return text(s.text)
	case c.late(), s.token == "=", !strings.HasPrefix(s.text, side.Owner):
		return far
	}
	before, ttl := s.text, cmd.TTL.Milliseconds()
	s.text, s.until = side.Text, int64(side.Until)/1e6
	c.prolong(&s, ttl)
	c.expire(cmd.Key, cmd.TTL)
	c.expire(cmd.Guard, cmd.TTL)
	return text(before)
}

// prolong moves the end of the newest grant, and of the record.
func (c *call) prolong(s *sidecar, ttl int64) {
	if last := len(s.owed) - 1; last >= 0 {
		s.owed[last] = max(s.owed[last], c.ms+2*ttl)
	}
	c.remember(s, 3*ttl)
}

// sidecarDel is sidecar_del.lua.
func sidecarDel(c *call) protocol.Reply {
	cmd, side := c.command, c.command.Sidecar
	s := c.remembered()
	c.giveUp(&s)
	mine, ours := s.held(), len(s.owed) > 0
	if ours {
		s.owed = s.owed[:len(s.owed)-1]
	}
	if len(s.owed) > 0 {
		c.remember(&s, max(s.owed[len(s.owed)-1]-c.ms, 1))
		return integer(1)
	}
	seen, freed := c.read(cmd.Key), int64(0)
	owner, guarded := c.text(cmd.Guard)
	handed := false
	switch {
	case mine != "" && seen.Kind == protocol.Text && seen.Text == mine && !c.past(&s):
		freed = 1
		// What follows is a release as of a bridge holder's.
		drop := *cmd
		drop.Op, drop.Value, drop.Behind, drop.Held = protocol.BridgeDrop, mine, 0, time.Duration(max(0, c.ms-s.since))*time.Millisecond
		c.command = &drop
		ours := guarded && owner == mine
		contended := c.queued() > 0 || c.yieldsOn() && c.recall() != nil
		if !(ours && c.yieldsOn() && contended && c.yields(c.queued())) {
			given, withGuard := c.grant("", false)
			if handed = given; given && !withGuard && ours {
				c.remove(cmd.Guard)
			}
		}
		if !handed {
			c.remove(cmd.Key)
		}
		c.command = cmd
	case !ours && side.Plain && seen.Kind != protocol.Nil && !c.late():
		freed = 1
		c.remove(cmd.Key)
	}
	if mine != "" && !handed && guarded && owner == mine {
		if cmd.Breath >= time.Millisecond && freed == 1 {
			c.expire(cmd.Guard, cmd.Breath)
		} else {
			c.remove(cmd.Guard)
		}
	}
	s.token, s.text = "-", ""
	if s.place == "-" {
		c.forgetSidecar()
	} else {
		c.remember(&s, 1)
	}
	return integer(freed)
}

// sidecarExpire is sidecar_expire.lua.
func sidecarExpire(c *call) protocol.Reply {
	cmd := c.command
	s := c.remembered()
	if mine := s.held(); mine == "" || !c.holds(cmd.Key, mine) || c.past(&s) || c.late() {
		return integer(0)
	}
	s.until = int64(cmd.Sidecar.Until) / 1e6
	c.prolong(&s, cmd.TTL.Milliseconds())
	if s.token != "=" {
		c.expire(cmd.Guard, cmd.TTL)
	}
	c.expire(cmd.Key, cmd.TTL)
	return integer(1)
}

// sidecarKeep is sidecar_keep.lua.
func sidecarKeep(c *call) protocol.Reply {
	cmd := c.command
	if c.late() {
		return fault(refusal)
	}
	s := c.remembered()
	mine := s.held()
	owner, guarded := c.text(cmd.Guard)
	seen, there := c.text(cmd.Key)
	owns, stands := guarded && owner == mine, there && seen == mine
	switch {
	case mine == "" || !stands && (!owns || s.token == "="):
		return integers(protocol.KeepNothing, int64(len(s.owed)), 0)
	case s.token == "=":
		if ttl := cmd.TTL.Milliseconds(); s.until == 0 && ttl > 0 {
			c.prolong(&s, ttl)
		}
		return integers(protocol.KeepOld, int64(len(s.owed)), 0)
	}
	left := c.pttl(cmd.Key)
	if owns {
		left = c.pttl(cmd.Guard)
	}
	left = max(left, 1)
	if owns && there && !stands {
		return protocol.Reply{Kind: protocol.Integer, Int: protocol.KeepTheirs, Int2: left, Text: seen}
	}
	if ttl := cmd.TTL.Milliseconds(); s.until == 0 && ttl > 0 {
		c.prolong(&s, ttl)
		left = ttl
		if owns {
			c.expire(cmd.Guard, cmd.TTL)
		}
		if stands {
			c.expire(cmd.Key, cmd.TTL)
		}
	}
	switch {
	case owns && stands:
		return protocol.Reply{Kind: protocol.Integer, Int: protocol.KeepDone, Int2: left, Text: mine}
	case owns:
		c.write(cmd.Key, mine, left)
	default:
		c.write(cmd.Guard, mine, left)
	}
	return protocol.Reply{Kind: protocol.Integer, Int: protocol.KeepRepair, Int2: left, Text: mine}
}

// sidecarOld is sidecar_old.lua.
func sidecarOld(c *call) protocol.Reply {
	cmd, side := c.command, c.command.Sidecar
	before := c.read(cmd.Key)
	there, nx := before.Kind != protocol.Nil, side.Form == protocol.FormSetNX || side.Form == "setnx"
	if c.late() || c.find(cmd.Guard) >= 0 || there && nx {
		switch {
		case side.Form == protocol.FormSetNX:
			return integer(0)
		case nx:
			return protocol.Reply{Kind: protocol.Nil}
		case side.Form == protocol.FormTakes:
			return text(side.Far)
		}
		return fault("HELD " + cmd.Key + " is held by a token, or the lease of this sidecar is over")
	}
	if before.Kind == protocol.Fault {
		return before
	}
	s := c.remembered()
	live := there
	if there {
		due, ok := c.expiry(before.Text)
		live = !ok || due >= int64(side.Now)/1e6
	}
	c.giveUp(&s)
	if !live {
		s.owed = append(s.owed, c.ms+side.Owes.Milliseconds())
	}
	s.token, s.until, s.text, s.since, s.place, s.settle, s.stands = "=", int64(side.Until)/1e6, side.Text, c.ms, "-", 0, 0
	c.remember(&s, side.Owes.Milliseconds())
	c.write(cmd.Key, side.Text, 0)
	switch side.Form {
	case protocol.FormSetNX:
		return integer(1)
	case protocol.FormTakes:
		return before
	}
	return text("OK")
}
