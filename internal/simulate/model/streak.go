package model

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// streak is what the scripts keep of the bridge holders that follow one another on a key.
type streak struct {
	read        bool   // it is there, and a streak
	text        string // since as it is written
	since, ends int64
}

var streakForm = regexp.MustCompile(`^[0-9]+ [0-9]+$`)

// streak reads it for one who keeps one.
func (c *call) streak() streak {
	if c.command.Streak == "" || c.command.YieldAfter < time.Millisecond {
		return streak{}
	}
	return c.readStreak()
}

func (c *call) readStreak() streak {
	i := c.find(c.command.Streak)
	if i < 0 || c.entries[i].Kind != String || !streakForm.MatchString(c.entries[i].Value) {
		return streak{}
	}
	begun, end, _ := strings.Cut(c.entries[i].Value, " ")
	since, err1 := strconv.ParseInt(begun, 10, 64)
	ends, err2 := strconv.ParseInt(end, 10, 64)
	return streak{err1 == nil && err2 == nil, begun, since, ends}
}

// longer is by how much more than YieldAfter a streak may last.
func (c *call) longer() int64 {
	return max((c.command.YieldMost - c.command.YieldAfter).Milliseconds(), 0)
}

// follow begins a streak with the holder, or sees to it that the one that goes on does so for long enough. It
// returns 1 if a gap may follow.
func (c *call) follow(s streak, follows bool, code int64) (due int64) {
	cmd := c.command
	gap, after := float64(cmd.Gap.Milliseconds()), float64(cmd.YieldAfter.Milliseconds())
	if cmd.Streak == "" || after < 1 {
		return 0
	}
	fresh := !follows || code == protocol.TakeOver
	if fresh && 0 > after-gap/8 || !fresh && float64(c.ms-s.since) > after-gap/8 {
		due = 1
	}
	if fresh {
		quiet, most := "", float64(c.longer())
		if s.read && code == protocol.TakeFree && cmd.Quiet && cmd.Entry != "" {
			quiet = s.text[:len(s.text)-len(strings.TrimLeft(s.text, "0"))]
			if after*(math.Exp2(float64(len(quiet)))-1) < most {
				quiet += "0"
			}
		}
		more := min(after*(math.Exp2(float64(len(quiet)))-1), most)
		s.text = quiet + fmt.Sprintf("%.0f", float64(c.ms)+more)
	} else if float64(s.ends-c.ms) >= gap*1.125 {
		return due
	}
	c.write(cmd.Streak, fmt.Sprintf("%s %.0f", s.text, float64(c.ms)+gap*1.25), (cmd.TTL + 2*cmd.Gap).Milliseconds())
	return due
}

// gapDue tells that the key is to be left to legacy clients now.
func (c *call) gapDue() bool {
	s := c.streak()
	return s.read && c.ms-s.since > c.command.YieldAfter.Milliseconds()
}

// goOn is a release: the streak goes on if the next holder comes within a gap.
func (c *call) goOn() {
	cmd, gap := c.command, c.command.Gap.Milliseconds()
	if cmd.Streak == "" || gap <= 0 {
		return
	}
	s := c.readStreak()
	if !s.read {
		s.text = strconv.FormatInt(c.ms, 10)
	}
	c.write(cmd.Streak, fmt.Sprintf("%s %d", s.text, c.ms+gap), cmd.TTL.Milliseconds()+gap)
}

// anew begins a streak because a legacy client has shown itself.
func (c *call) anew() {
	cmd, gap := c.command, c.command.Gap.Milliseconds()
	if cmd.Streak != "" && gap > 0 {
		c.write(cmd.Streak, fmt.Sprintf("%d %d", c.ms, c.ms+gap), cmd.TTL.Milliseconds()+gap)
	}
}
