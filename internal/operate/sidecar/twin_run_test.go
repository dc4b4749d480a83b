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

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/stages"
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

func (r *run) compare(views [2][2]view) {
	for i, b := range views[0] {
		v := views[1][i]
		switch {
		case r.over:
		case i == 0 && r.lost && v.what == "token":
			r.fail(fmt.Sprintf("after step %d a token stands there for a GETSET that lost: %+v", r.next, v))
		case same(b, v):
		case v.kind == "none" && b.kind == "string" && b.ttl < 0 && r.ends(b.value):
			r.differ("D1")
		case b.kind == "none" && v.what == "token" && r.guarded:
			r.differ("D10")
		case v.what == "kept" && b.kind == "string" && r.legacy(b.value) && r.ends(b.value):
			r.differ("D4")
		default:
			r.fail(fmt.Sprintf("after step %d %s is %+v on the bare server and %+v behind a sidecar", r.next, locks[i], b, v))
		}
	}
	for _, v := range views[1] {
		r.guarded = r.guarded || r.direct && v.kind == "none" && v.guard != ""
	}
	r.lost = false
	r.site.compared++
}

var (
	elsewhere = regexp.MustCompile(`( script: [0-9a-f]{40}, on @?user_script:\d+\.|user_script:\d+: |script: [0-9a-f]{40})`)
	farNumber = regexp.MustCompile(`(^|\D)[5-9]\d{18}(\D|$)`)
)

// judge compares the replies to a step.
func (r *run) judge(s *step, before [2]view, got [2][]string) {
	if s.client < 0 {
		name, what := s.commands[0][0], before[0].what
		r.direct = r.direct || name != "SETNX" && (what == "token" || what == "kept")
		switch {
		case name == "DEL" && what == "kept":
			r.differ("D10")
		case name == "SETNX" && what == "kept":
			r.differ("D6")
		case what == "token" && r.ends(before[0].value):
			r.differ("D1")
		}
		return
	}
	for i, c := range s.commands {
		if c[0] == "EXEC" && got[0][i] != "nil" && got[1][i] != "nil" {
			inside := s.commands[1:i]
			all := [2][]string{strings.Split(strings.Trim(got[0][i], "[]"), "|"), strings.Split(strings.Trim(got[1][i], "[]"), "|")}
			if len(all[0]) == len(all[1]) && len(all[0]) <= len(inside) {
				for n := range all[0] {
					r.reply(s, inside[n], before, all[0][n], all[1][n])
				}
				continue
			}
		}
		r.reply(s, c, before, got[0][i], got[1][i])
	}
}

func (r *run) reply(s *step, c []string, before [2]view, bare, behind string) {
	name := strings.ToUpper(c[0])
	v, me := before[0], r.site.owners[r.services[s.client]]
	if slices.Contains(c, "L") && (!slices.Contains(c, "K") || before[1].owner != "" && before[1].owner != me) {
		v = before[1]
	}
	if r.own {
		switch plain := slices.Contains([]string{"GET", "SETNX", "GETSET", "DEL", "UNLINK"}, name); {
		case name == "WATCH":
			r.dirtied = false
		case !plain && (v.what == "token" || v.what == "kept"):
			r.dirtied = true
		}
	}
	swaps := name == "GETSET" || name == "SET" && slices.Contains(c, "GET")
	if swaps && len(s.commands) == 1 && v.what == "raw" && r.site.dialect != nil {
		at, ok := r.site.dialect.Written(bare)
		r.lost = ok && at.Time().After(r.site.now().Add(time.Second))
	}
	if r.over || bare == behind || strings.HasPrefix(name, "EVAL") && elsewhere.ReplaceAllString(bare, "") == elsewhere.ReplaceAllString(behind, "") {
		return
	}
	theirs := (v.what == "token" || v.what == "kept") && v.owner != me
	far, nx := farNumber.MatchString(behind), name == "SETNX" || name == "SET" && slices.ContainsFunc(c[3:], func(w string) bool { return strings.EqualFold(w, "NX") })
	no := behind == "0" || behind == "nil"
	switch {
	case theirs && strings.Contains(behind, "would damage a lock that another holds"),
		theirs && slices.Contains([]string{"DEL", "UNLINK", "EXPIRE", "PEXPIRE", "PERSIST"}, name) && (behind == "0" || behind == "1" && bare == "2"),
		swaps && (theirs || v.guard != "" && v.guard != me) && far, theirs && strings.HasPrefix(name, "EVAL"):
		r.differ("D3")
	case theirs && name == "GET" && far:
		if v.what == "kept" {
			r.differ("D6")
		}
	case nx && no && (theirs && v.what == "kept" || v.kind == "none" && (v.gap || v.guard == "breath") || r.site.stage == stages.Bridge && len(s.commands) > 1):
		r.differ("D6")
	case r.direct && v.guard != "" && (v.kind == "none" || v.what == "raw" && len(s.commands) > 1): // ... or it goes within the transaction
		r.differ("D10")
	case rounded(bare, behind):
		r.differ("D11")
	case (nx && no || swaps && bare == "nil" && far) && r.ends(r.word(c[2], true)):
		r.differ("D2")
	case v.what == "token" && v.ttl < 0 && r.ends(v.value):
		r.differ("D1")
	case v.what == "raw" && v.ttl < 0 && r.legacy(v.value) && far && (swaps || name == "GET" && r.ends(v.value)):
		if swaps {
			r.differ("D4")
		}
	case len(s.commands) > 1 && v.what == "raw" && v.ttl < 0 && r.legacy(v.value) && r.ends(v.value): // taken over within a transaction
		r.differ("D4")
	case len(s.commands) > 1 && slices.ContainsFunc(slices.Concat(s.commands...), func(w string) bool { return w == "@-5" }) && r.site.dialect != nil:
		r.differ("D2")
	case len(s.commands) > 1 && far && r.legacy(bare) && (swaps || name == "GET" && r.ends(bare)):
		r.differ("D4")
	case swaps && (v.kind == "none" || len(s.commands) > 1) && bare == "nil" && far && r.losesOnNothing():
		r.differ("D5")
	case swaps && bare == "nil" && far && (v.kind == "none" && v.gap || r.site.stage == stages.Bridge && len(s.commands) > 1): // after a DEL
		r.differ("D6")
	case name == "EXEC" && behind == "nil" && r.dirtied:
		r.differ("D9")
	case nx && no && r.site.stage == stages.Bridge && r.site.dialect != nil && r.site.dialect.SettlesFree():
		r.differ("D12")
	default:
		r.fail(fmt.Sprintf("%q is answered %q by the bare server and %q behind a sidecar; before it stood there %+v", c, bare, behind, v))
	}
}

// losesOnNothing tells whether a GETSET of the service on an absent key would lose: D5 names the dialects.
func (r *run) losesOnNothing() bool {
	return r.site.dialect == nil || slices.Contains([]string{"jedis-ms", "jedis-uuid", "redis-doc", "servicestack", "unix-ns"}, r.site.dialect.Name)
}

// rounded tells whether a reply is another one, as a number of Lua.
func rounded(bare, behind string) bool {
	n, err := strconv.ParseInt(bare, 10, 64)
	return err == nil && max(n, -n) > 1<<53 && behind == fmt.Sprintf("%.0f", float64(n))
}

// TestTwinFinds plants faults that a sidecar once had. The twin finds each, and tells the first program that does.
func TestTwinFinds(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	type edit struct {
		script   *scripts.Script
		old, new string
	}
	// in changes scripts: what a sidecar sends has the changed text.
	in := func(edits ...edit) func(*run, *wireConn, int, []string) bool {
		return func(r *run, conn *wireConn, client int, words []string) bool {
			args := [][]byte{}
			for _, w := range words {
				args = append(args, []byte(w))
			}
			if _, known := r.site.commands[strings.ToUpper(words[0])]; !known || len(words) < 2 {
				return false
			}
			verdict, out := r.site.services[r.services[client]].Rewrite(r.clients[client], args, nil)
			if verdict != proxy.Replace {
				return false
			}
			request := string(out)
			for _, e := range edits {
				text := e.script.Bare()
				if !strings.Contains(request, text) {
					continue
				}
				require.Contains(t, text, e.old)
				changed := strings.Replace(text, e.old, e.new, 1)
				request = strings.Replace(request, "$"+strconv.Itoa(len(text))+"\r\n"+text, "$"+strconv.Itoa(len(changed))+"\r\n"+changed, 1)
			}
			conn.out = append(conn.out, request...)
			return true
		}
	}
	// instead sends a script in place of a command.
	instead := func(command string, words int, script string) func(*run, *wireConn, int, []string) bool {
		return func(r *run, conn *wireConn, _ int, sent []string) bool {
			if strings.TrimPrefix(sent[0], "P") != command || len(sent) != words || !strings.Contains(sent[1], r.site.namespace()) {
				return false
			}
			conn.send("EVAL", script, "1", sent[1], sent[len(sent)-1], strconv.FormatInt(r.site.now().UnixMilli(), 10))
			return true
		}
	}
	again := in(edit{scripts.SidecarTake, "local careful =", "if s.text == written and whose(s) == 'mine' then return granted() end\nlocal careful ="})
	owed := in(
		edit{scripts.SidecarTake, "return reply or granted()", "redis.call('INCR', record .. ':owed') redis.call('EXPIRE', record .. ':owed', 60)\nreturn reply or granted()"},
		edit{scripts.SidecarDel, "local what, seen, owner = whose(s)", "if redis.call('DECR', record .. ':owed') > 0 then return 1 end redis.call('DEL', record .. ':owed')\nlocal what, seen, owner = whose(s)"})
	for _, c := range []struct {
		fault, site string
		plant       func(*run, *wireConn, int, []string) bool
	}{
		{"S1: the same text again is the same attempt", "bridge/redispy-float", again},
		{"S2: the same text again is the same attempt", "modern/unix-ns", again},
		{"S3: at stage legacy EXPIRE knows only the record", "legacy/jedis-ms", instead("EXPIRE", 3, "return 0")},
		{"a token for a GETSET that lost, which outlasts the holder's DEL", "bridge/redispy-float in jedis-ms", in(edit{scripts.SidecarTake, "if due and grace >= 0 and now > due + grace then return", "do return"})},
		{"S4: DEL leaves a loser's value", "bridge/redispy-float", in(edit{scripts.SidecarDel, "what == 'raw' and", "what == 'raw' and not ours and"})},
		{"S5: UNLINK leaves what a script took", "modern/none", in(edit{scripts.SidecarDel, "what == 'raw' and redis.call('DEL', key) or 0", "0"})},
		{"S5: EXPIRE does not know what a script took", "modern/none", in(edit{scripts.SidecarRun, "if what == 'theirs' and mode == 'spare'", "if (what == 'theirs' or what == 'raw') and mode == 'spare'"})},
		{"S5: GET does not show what a script took", "bridge/jedis-ms", in(edit{scripts.SidecarGet, "if what == 'theirs' then return far", "if what == 'theirs' or what == 'raw' then return far"})},
		{"S6: a DEL is owed for each grant", "bridge/jedis-ms", owed},
		{"S7: the record remembers each grant", "modern/jedis-ms", in(edit{scripts.SidecarTake, "return reply or granted()", "redis.call('HSET', record, 'owed', (redis.call('HGET', record, 'owed') or '') .. now .. ',')\nreturn reply or granted()"})},
		{"S8: at stage legacy GET does not show a time that is over", "legacy/jedis-ms",
			instead("GET", 2, "local v = redis.call('GET', KEYS[1]) if v and tonumber(v) and tonumber(v) < tonumber(ARGV[2]) then return '7000000000000000000' end return v")},
		{"S12: at stage legacy SET asks what it overwrites", "legacy/jedis-ms", instead("SET", 3, "redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], ARGV[1])")},
		{"S12: at stage legacy DEL compares", "legacy/jedis-ms", instead("DEL", 2, "if tonumber(redis.call('GET', KEYS[1]) or 0) == 2 then return 0 end return redis.call('DEL', KEYS[1])")},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.sites(t, c.site)[0]
			s.plant = c.plant
			found := s.search(t, 1, 3000, map[string]int{})
			require.NotNil(t, found)
			t.Logf("%s\n%s", found.why, found)
		})
	}
}
