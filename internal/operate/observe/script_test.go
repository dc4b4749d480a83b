package observe

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

const epoch = protocol.Instant(1772366400 * int64(time.Second))

// tape feeds an observer a stream. The keys of the server are known: there are none at the start.
type tape struct {
	o       *Observer
	at      protocol.Instant
	scripts traffic.Scripts
}

func newTape(opts Options) *tape {
	t := &tape{o: New(opts), at: epoch}
	t.o.Keys.Scanning(0)
	t.o.Keys.Complete()
	return t
}

// run takes a command in, a millisecond after the one before.
func (t *tape) run(addr string, words ...string) {
	t.wait(time.Millisecond)
	c := &traffic.Command{At: t.at, Addr: addr, Words: words}
	t.scripts.Attribute(c)
	t.o.Take(c)
}

func (t *tape) wait(d time.Duration) { t.at = t.at.Add(d) }

// turn is one of an old client whose clock is off: its SETNX is so long on its way, and it holds the lock for 5 ms.
func (t *tape) turn(addr, key string, lease, off, delay time.Duration) {
	value := t.ms(lease + off)
	t.wait(delay)
	t.run(addr, "SETNX", key, value)
	t.wait(5 * time.Millisecond)
	t.run(addr, "DEL", key)
}

func (t *tape) report() Report {
	t.o.Finish()
	return t.o.Report()
}

// ms, sec: the server's clock plus a duration, as the clients write it.
func (t *tape) ms(d time.Duration) string  { return t.count(d, time.Millisecond) }
func (t *tape) sec(d time.Duration) string { return t.count(d, time.Second) }
func (t *tape) count(d, unit time.Duration) string {
	return strconv.FormatInt(int64(t.at.Add(d+time.Millisecond))/int64(unit), 10)
}

func rowOf(t *testing.T, r Report, addr string) Row {
	t.Helper()
	for _, row := range r.Clients {
		if row.Addr == addr {
			return row
		}
	}
	require.Fail(t, "no row", "%s in %+v", addr, r.Clients)
	return Row{}
}

var rewrite = flag.Bool("rewrite", false, "write what is told into testdata")

// TestScripts plays what clients of testdata do, and wants told what stands behind it. Lines are
//
//	new [group=host] [lease=30s] [match=PREFIX]   another server and observer; with unknown, nobody knows which keys there are
//	ADDRESS COMMAND...                            a millisecond after the line before; lua is a script's command
//	wait 40ms, at 9s                              time passes; at counts from the beginning
//	repeat 5 ... end                              {n} is 0, 1 and so on
//	learn KEY VALUE                               a read of ours
//	server ADDRESS, name ADDRESS NAME             what follows is on this one of several servers; CLIENT LIST's name of an address
//	report, profile, events, record               what is told follows behind ----; record is what stage init would write
//
// In a command @30s is the client's time in 30 s in milliseconds, @s30s in seconds, @ns30s in nanoseconds, @f30s a float, %NAME the digest of a script
// and $NAME its text.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			p := &player{t: t, tape: newTape(Options{})}
			p.all = observers{p.o}
			p.play(strings.Split(strings.TrimRight(string(text), "\n"), "\n"))
			if got := p.out.String(); *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			} else {
				assert.Equal(t, string(text), got)
			}
		})
	}
}

// player plays one file. What it writes is the file with what is told now.
type player struct {
	*tape           // of the server that is spoken of
	all   observers // of all servers
	opts  Options
	t     *testing.T
	out   strings.Builder
}

func (p *player) play(lines []string) {
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		p.out.WriteString(lines[i] + "\n")
		switch words := strings.Fields(line); {
		case line == "" || words[0] == "#":
		case slices.Contains([]string{"report", "profile", "events", "record"}, words[0]):
			p.out.WriteString("----\n" + p.told(words[0]))
			for i+1 < len(lines) && lines[i+1] != "" { // what was told before
				i++
			}
		case words[0] == "repeat":
			n, err := strconv.Atoi(words[1])
			require.NoError(p.t, err)
			end := i + slices.Index(lines[i:], "end")
			for round := range n {
				for _, one := range lines[i+1 : end] {
					p.do(strings.Fields(strings.ReplaceAll(one, "{n}", strconv.Itoa(round))))
				}
			}
			p.out.WriteString(strings.Join(lines[i+1:end+1], "\n") + "\n")
			i = end
		default:
			p.do(words)
		}
	}
}

var moment = regexp.MustCompile(`^([0-9a-f-]*:|)@(s|ns|f|)(-?[0-9.]+m?s)(.*)$`)

func (p *player) do(words []string) {
	duration := func(text string) time.Duration {
		d, err := time.ParseDuration(text)
		require.NoError(p.t, err, "%v", words)
		return d
	}
	for i, w := range words {
		if m := moment.FindStringSubmatch(w); m != nil {
			d := duration(m[3])
			words[i] = m[1] + map[string]string{"": p.ms(d), "s": p.sec(d), "ns": p.count(d, 1), "f": fmt.Sprintf("%.6f", float64(p.at.Add(d+time.Millisecond))/1e9)}[m[2]] + m[4]
		}
		for _, s := range scripts.All() {
			switch w {
			case "%" + s.Name:
				words[i] = s.Digest
			case "$" + s.Name:
				words[i] = s.Source
			}
		}
	}
	switch words[0] {
	case "new":
		var o Options
		known := true
		for _, option := range words[1:] {
			switch name, value, _ := strings.Cut(option, "="); name {
			case "group":
				o.Group = Group(value)
			case "lease":
				o.Lease = duration(value)
			case "match":
				o.Match = func(key string) bool { return strings.HasPrefix(key, value) }
			case "unknown":
				known = false
			}
		}
		if p.tape = newTape(o); !known {
			p.tape = &tape{o: New(o), at: epoch}
		}
		p.opts, p.all = o, observers{p.o}
	case "server":
		if p.o.server != "" {
			p.tape = newTape(p.opts)
			p.all = append(p.all, p.o)
		}
		p.o.server = words[1]
	case "name":
		p.o.Name(words[1], Peer{Name: words[2]})
	case "wait":
		p.wait(duration(words[1]))
	case "at":
		p.tape.at = epoch.Add(duration(words[1]) - time.Millisecond)
	case "learn":
		p.o.Keys.Learn(traffic.Key{Name: words[1]}, words[2])
	default:
		p.run(words[0], words[1:]...)
	}
}

func (p *player) told(what string) string {
	var b strings.Builder
	some := func(name string, v any) {
		if text := fmt.Sprint(v); text != "0" && text != "" && text != "map[]" && text != "[]" {
			fmt.Fprintf(&b, " %s %v", name, strings.TrimPrefix(text, "map"))
		}
	}
	for _, o := range p.all {
		o.Finish()
	}
	r := p.all.report(nil)
	switch what {
	case "profile":
		p.profiled(&b, some)
		return b.String()
	case "record":
		if old, err := p.all.profile(nil).OldClients(); err != nil {
			return err.Error() + "\n"
		} else {
			return strings.Join(old.Why, "\n") + "\n"
		}
	}
	for _, e := range r.Events {
		if what == "events" {
			fmt.Fprintf(&b, "%s %s by %s: %s\n", e.Key, e.Hazard, e.By.Addr, e.Note)
		}
	}
	for _, c := range r.Clients {
		if what == "events" {
			break
		}
		fmt.Fprintf(&b, "%s %s %s", c.Addr, c.Kind, c.Dialect)
		some("or", c.DialectOr)
		some("at", c.Server)
		if c.LeaseMS != 0 {
			fmt.Fprintf(&b, " lease %.0f %s", c.LeaseMS, c.LeaseFrom)
			if c.LeaseMostMS-c.LeaseLeastMS > 100 {
				some(map[bool]string{true: "varies between", false: "between"}[c.LeaseVaries], fmt.Sprintf("%.0f and %.0f", c.LeaseLeastMS, c.LeaseMostMS))
			}
		}
		if c.SkewMS != nil {
			fmt.Fprintf(&b, " skew %+.0f", *c.SkewMS)
			some("off by", int(*c.SkewErrorMS+0.5))
		}
		some("poll", c.PollMS)
		if c.Tries != c.Acquired {
			some("tried", c.Tries)
		}
		some("acquired", c.Acquired)
		some("released", c.Released)
		some("sent", c.Sent)
		some("longest pause", int(c.PauseMaxMS))
		b.WriteString("\n")
	}
	b.WriteString("in all")
	some("hazards", r.Hazards)
	for _, v := range r.Overlaps {
		some("overlap", v.First.Addr+" "+v.Second.Addr+" "+v.Cause)
	}
	return b.String() + "\n"
}

func (p *player) profiled(b *strings.Builder, some func(string, any)) {
	made := p.all.profile(nil)
	require.NoError(p.t, made.Validate())
	if w := made.Window; w.Masters > 1 {
		fmt.Fprintf(b, "%.1f s, %d masters, %d commands, %d on locks\n", w.Seconds, w.Masters, w.Commands, w.LockCommands)
	}
	for _, c := range made.Clients {
		fmt.Fprintf(b, "%s %s connections %d at once %d", c.Name, c.Dialect, c.Connections, c.AtOnce)
		some("takeover pauses", c.Pause.N)
		if len(c.Clock) > 1 {
			some("readings of its clock", len(c.Clock))
		}
		b.WriteString("\n")
		for _, u := range c.Uses {
			fmt.Fprintf(b, "  %s", u.Family)
			some("acquired", u.Acquired)
			for i, s := range []profile.Spread{u.Hold, u.Wait, u.Think} {
				if s.N > 0 {
					some([]string{"hold", "wait", "think"}[i], fmt.Sprintf("%d to %.0f", s.N, s.Most()))
				}
			}
			some("crashed", u.Crashed)
			some("left", u.Left)
			if u.Own.Keys > 0 {
				some("own keys", fmt.Sprint(u.Own.Keys, " acquired ", u.Own.Acquired))
			}
			some("once", u.Own.Once)
			b.WriteString("\n")
		}
	}
	if keys, clients := made.Unsure(); keys > 0 {
		fmt.Fprintf(b, "%d keys only once, by %d clients\n", keys, clients)
	}
	for _, f := range made.Families {
		fmt.Fprintf(b, "%s keys %d", f.Name, f.Keys)
		for _, g := range f.Groups {
			some("shared", fmt.Sprint(g.Keys, " by ", g.Clients, " ", g.Acquired))
		}
		some("overlaps", f.Overlaps)
		b.WriteString("\n")
	}
}
