package sidecar_test

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// run is a program under way.
type run struct {
	*program
	site    *site
	id      int
	at      time.Time // the texts of this spell count from it
	next    int       // of its steps
	clients []*proxy.Client
	conns   [2][]*wireConn // bare and behind; of own connections
	dirtied bool           // since its WATCH something ran on the text of a lock
	direct  bool           // a direct client has overwritten or deleted a token
	guarded bool           // ... and the guard stood there without the key
	lost    bool           // the last command was a GETSET of K that its client lost
	over    bool
}

// view is what stands on a key, for the service's clients.
type view struct {
	kind, value string
	ttl         int64
	what        string // none, raw, token, kept
	owner       string // the sidecar whose token it is
	gap         bool   // the key is left to direct clients, or was
	guard       string // whose token the guard holds, "?" for another one, "breath" for none
}

func (s *site) namespace() string { return strings.NewReplacer("/", "-", " ", "-").Replace(s.name) }

func (r *run) key(name string, behind bool) string {
	switch name {
	case "K", "L", "O":
	default:
		return name
	}
	key := fmt.Sprintf("%s:%s%d", r.site.namespace(), name, r.id)
	if !behind || name == "O" {
		key = "no lock " + key
	}
	if name == "O" && behind {
		key = "behind " + key
	}
	return key
}

// word is a word of a program as it is sent.
func (r *run) word(w string, behind bool) string {
	switch {
	case w == "@ever" && r.site.dialect != nil && r.site.dialect.Forever != "":
		return r.site.dialect.Forever
	case w == "@ever":
		return "2147483649.0"
	case w == "@number":
		return "7123456789012345678"
	case !strings.HasPrefix(w, "@"):
		return r.key(w, behind)
	}
	lease, later, _ := strings.Cut(w[1:], "+")
	seconds, _ := strconv.Atoi(lease)
	n, _ := strconv.Atoi(later)
	if r.site.dialect == nil {
		return "uuid " + w[1:]
	}
	owner := fmt.Sprintf("0f0e0d0c-0b0a-4908-8706-05040302010%d", n)
	if r.site.dialect.Layout != protocol.UUIDColonNumber {
		owner = fmt.Sprintf("12%d-main", n)
	}
	text, _ := r.site.dialect.Expiry(protocol.InstantOf(r.at.Add(time.Duration(n)*time.Millisecond)), time.Duration(seconds)*time.Second, owner)
	return text
}

func (r *run) words(c []string, behind bool) []string {
	words := make([]string, len(c))
	for i, w := range c {
		words[i] = r.word(w, behind)
	}
	if c[0] == "EVALSHA" {
		sum := sha1.Sum([]byte(c[1]))
		words[1] = hex.EncodeToString(sum[:])
	}
	return words
}

// send sends a command of a client on a connection behind its sidecar. It is false where that cuts the connection.
func (r *run) send(conn *wireConn, client int, words []string) bool {
	service, c := r.site.services[r.services[client]], r.clients[client]
	if plant := r.site.plant; plant != nil && plant(r, conn, client, words) {
		return true
	}
	keys, known := r.site.commands[strings.ToUpper(words[0])]
	args := make([][]byte, len(words))
	covered := keys == proxy.Keys{}
	for i, w := range words {
		args[i] = []byte(w)
	}
	for i := keys.First; known && !covered && i > 0 && i < len(words); i++ {
		covered = service.Covers(args[i]) // a word that is no key is none of these
	}
	if !known || !covered {
		conn.send(words...)
		return true
	}
	verdict, out := service.Rewrite(c, args, nil)
	if verdict == proxy.Apart {
		c.Alone = true // nothing else of this client is under way
		verdict, out = service.Rewrite(c, args, nil)
		c.Alone = false
	}
	switch verdict {
	case proxy.Replace:
		conn.out = append(conn.out, out...)
	case proxy.Refuse:
		conn.send("EVAL", "return redis.error_reply(ARGV[1])", "0", string(out))
	case proxy.Cut:
		return false
	default:
		conn.send(words...)
	}
	return true
}

var locks = []string{"K", "L"}

// ask asks what stands on the keys of both; hear reads it.
func (r *run) ask() {
	conn := r.site.conn
	for i := range 2 * len(locks) {
		key := r.key(locks[i%2], i >= 2)
		conn.send("TYPE", key)
		conn.send("GET", key)
		conn.send("PTTL", key)
		if i >= 2 {
			conn.send("HGETALL", protocol.SidecarKey(key))
			conn.send("GET", protocol.GuardKey(key))
			conn.send("PTTL", protocol.SidecarKey(key))
			conn.send("PTTL", protocol.GuardKey(key))
			conn.send("PTTL", protocol.QueueKey(key))
			conn.send("GET", protocol.YieldKey(key))
		}
	}
}

func (r *run) hear() (bare, behind [2]view) { return r.views(false), r.views(true) }

var recordForm = regexp.MustCompile(`^(\S+) (\d+) (\d+) (\S+) (\d+) (\d+) ([01]) ((?s).*)$`)

func (r *run) views(behind bool) (views [2]view) {
	conn := r.site.conn
	for i := range locks {
		v := &views[i]
		v.kind, v.value = strings.TrimPrefix(conn.read(), "+"), conn.read()
		v.ttl, _ = strconv.ParseInt(conn.read(), 10, 64)
		if v.ttl == -2 { // it ended between the questions
			v.kind = "none"
		}
		if v.kind != "string" {
			v.value = ""
		}
		if v.what = "raw"; v.kind == "none" {
			v.what = "none"
		}
		if !behind {
			continue
		}
		record, guard := conn.read(), conn.read()
		for range 3 {
			if ttl := conn.read(); ttl == "-1" {
				r.fail("a key beside the lock has no TTL")
			}
		}
		gap := conn.read()
		v.gap = strings.HasPrefix(gap, "1 ") || strings.HasPrefix(gap, "2 ")
		switch guard {
		case "nil":
		case "breath":
			v.guard = guard
		default:
			v.guard = "?"
		}
		fields := strings.Split(strings.Trim(record, "[]"), "|")
		for n := 0; n+1 < len(fields); n += 2 {
			m := recordForm.FindStringSubmatch(fields[n+1])
			if m == nil {
				r.fail("the record is " + fields[n+1])
				continue
			}
			if len(fields[n+1]) > 200+len(m[8]) {
				r.fail("the record has grown: " + fields[n+1])
			}
			if guard == m[1] || guard == m[4] {
				v.guard = fields[n]
			}
			switch v.value {
			case m[1]:
				v.what, v.owner, v.value = "token", fields[n], m[8]
				if m[7] == "0" {
					v.ttl = -1
				}
			case m[4]:
				v.what, v.owner, v.value, v.kind, v.ttl = "kept", fields[n], "", "none", -2
			}
		}
	}
	return views
}

func (r *run) fail(why string) {
	if r.why == "" && r.ended == "" {
		r.why = why
	}
	r.over = true
}

// differ ends the comparison with a difference of the list.
func (r *run) differ(d string) {
	if !r.over {
		r.ended, r.over = d, true
	}
}

func same(a, b view) bool {
	if a.kind != b.kind || a.value != b.value || (a.ttl < 0) != (b.ttl < 0) {
		return false
	}
	return a.ttl < 0 || max(a.ttl-b.ttl, b.ttl-a.ttl) < 2500
}

// ends tells whether a text names a time that is over.
func (r *run) ends(text string) bool {
	if r.site.dialect == nil {
		return false
	}
	at, ok := r.site.dialect.Written(text)
	return ok && at.Time().Before(r.site.now().Add(time.Second))
}

// legacy tells whether a text is an expiry for the namespace's dialect.
func (r *run) legacy(text string) bool {
	fleet, _ := protocol.DialectNamed(r.site.fleet)
	_, ok := fleet.ServerExpiry(text, protocol.InstantOf(r.site.now()))
	return ok
}

// search runs programs, and returns the first one that fails, made as small as can be.
func (s *site) search(t *testing.T, first uint64, n int, counts map[string]int) *program {
	const together = 120
	var all []*program
	for i := range n {
		all = append(all, random(first+uint64(i)))
	}
	for kind := range uint64(len(pauses)) {
		var group []*program
		for _, p := range all {
			if p.seed%uint64(len(pauses)) == kind {
				group = append(group, p)
			}
		}
		for some := range slices.Chunk(group, together) {
			s.run(t, some)
			for _, p := range some {
				if p.why != "" {
					return s.shrink(t, p)
				}
				if p.ended != "" {
					counts[p.ended]++
					s.differences++
				}
			}
		}
	}
	return nil
}

// shrink leaves steps and pauses out for as long as the program still fails.
func (s *site) shrink(t *testing.T, p *program) *program {
	for again := true; again; {
		again = false
		for i := len(p.steps) - 1; i >= 0; i-- {
			less := *p
			less.why, less.ended, less.steps = "", "", slices.Clone(p.steps)
			if less.steps[i].pause {
				less.steps[i].pause = false
			} else {
				less.steps = slices.Delete(less.steps, i, i+1)
			}
			if s.run(t, []*program{&less}); less.why != "" {
				p, again = &less, true
			}
		}
	}
	return p
}

// run runs programs beside each other, with the same pauses.
func (s *site) run(t *testing.T, programs []*program) {
	var all []*run
	for _, p := range programs {
		s.keys++
		r := &run{program: p, site: s, id: s.keys, at: s.now()}
		for i, service := range p.services {
			c := &proxy.Client{ID: int64(i + 1), Addr: "client"}
			s.services[service].Open(c)
			r.clients = append(r.clients, c)
		}
		for side := range r.conns {
			for i := 0; p.own && i < len(p.services); i++ {
				r.conns[side] = append(r.conns[side], s.dial(t))
			}
		}
		all = append(all, r)
	}
	for spell := 0; ; spell++ {
		hears := []func(){}
		for _, r := range all {
			if !r.own {
				hears = append(hears, r.spell()...)
			}
		}
		s.conn.flush()
		for _, hear := range hears {
			hear()
		}
		for _, r := range all {
			if r.own {
				r.spell()
			}
		}
		all = slices.DeleteFunc(all, func(r *run) bool {
			if r.over = r.over || r.next >= len(r.steps); r.over {
				for _, conn := range slices.Concat(r.conns[:]...) {
					_ = conn.Close()
				}
			}
			return r.over
		})
		if len(all) == 0 {
			return
		}
		s.pass(pauses[(int(all[0].seed)+spell)%len(pauses)])
		for _, r := range all {
			r.at = s.now()
			r.ask()
		}
		s.conn.flush()
		ended := []string{}
		for _, r := range all {
			bare, behind := r.hear()
			for i, b := range bare {
				if v := behind[i]; v.kind == "none" && b.kind == "string" && b.ttl < 0 && r.ends(b.value) {
					ended = append(ended, r.key(locks[i], false))
				}
			}
		}
		for _, key := range ended {
			s.ends++ // D1: the same is done to the bare server
			s.conn.send("DEL", key)
		}
		s.conn.flush()
		for range ended {
			s.conn.read()
		}
	}
}

// spell sends what comes before the next pause, and returns what hears the replies; with connections of its own it hears them itself.
func (r *run) spell() (hears []func()) {
	then := func(hear func(), conns ...*wireConn) {
		if !r.own {
			hears = append(hears, hear)
			return
		}
		for _, conn := range conns {
			conn.flush()
		}
		hear()
	}
	for began := r.next; r.next < len(r.steps) && (r.next == began || !r.steps[r.next].pause); r.next++ {
		s := &r.steps[r.next]
		bare, behind := r.site.conn, r.site.conn
		if r.own {
			bare, behind = r.conns[0][s.client], r.conns[1][s.client]
		}
		var before [2][2]view
		r.ask()
		then(func() {
			before[0], before[1] = r.hear()
			r.compare(before)
		}, r.site.conn)
		for _, c := range s.commands {
			bare.send(r.words(c, false)...)
		}
		for _, c := range s.commands {
			if words := r.words(c, true); s.client < 0 {
				behind.send(words...)
			} else {
				r.send(behind, s.client, words)
			}
		}
		then(func() {
			var got [2][]string
			for side, conn := range []*wireConn{bare, behind} {
				for range s.commands {
					got[side] = append(got[side], conn.read())
				}
			}
			r.judge(s, before[1], got)
		}, bare, behind)
	}
	r.ask()
	then(func() {
		bare, behind := r.hear()
		r.compare([2][2]view{bare, behind})
	}, r.site.conn)
	return hears
}
