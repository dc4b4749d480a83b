package world

import (
	"regexp"
	"slices"
	"strings"

	"github.com/alicebob/miniredis/v2/server"
)

// thrown is what miniredis puts around the error of a script: a place in it, and a trace.
var thrown = regexp.MustCompile(`(?s)^-ERR Error compiling script \(new function\): (?:<?\w*>?:\d+: )?(.*?)(?:\s+stack traceback:.*)?\r\n$`)

// eval runs EVAL and EVALSHA. The caller holds mu.
func (s *Server) eval(c *client, words []string) []byte {
	sha, source := words[1], words[1]
	if words[0] == "EVAL" {
		sha = s.load(source)
	} else if source = s.scripts[sha]; source == "" {
		return encode(nil, fault("NOSCRIPT No matching script. Please use EVAL."))
	}
	s.inScript, s.wrote = true, false
	defer func() { s.inScript = false }()
	raw := s.dispatch(c.peer, append([]string{"EVAL", source}, words[2:]...))
	failed := thrown.FindSubmatch(raw)
	if failed == nil {
		return raw
	}
	text := string(failed[1])
	if code, _, _ := strings.Cut(text, " "); code != strings.ToUpper(code) { // the engine's own
		text = "ERR " + text
	}
	if !strings.Contains(text, "@user_script") {
		text += " script: " + sha + ", on @user_script."
	}
	return encode(nil, fault(text))
}

// notInScripts are commands that a script may not call.
var notInScripts = []string{"EVAL", "EVALSHA", "SUBSCRIBE", "UNSUBSCRIBE", "AUTH", "CLIENT", "SCRIPT", "MULTI", "EXEC", "WATCH", "CONFIG"}

// nested is asked of each command before miniredis runs it, and runs what it does not of a script. The caller holds mu.
func (s *Server) nested(p *server.Peer, name string, args ...string) (done bool) {
	if !s.inScript || p == s.asks {
		return false
	}
	words := append([]string{name}, args...)
	answer := func(reply any) bool {
		p.WriteRaw(string(encode(nil, reply)))
		return true
	}
	if refusal := s.refuses(words, s.full && !s.wrote); refusal != "" {
		return answer(refusal)
	}
	if slices.Contains(notInScripts, words[0]) {
		return answer(fault("ERR This Redis command is not allowed from script"))
	}
	s.count(words)
	s.wrote = s.wrote || growing[words[0]] || writing[words[0]]
	reply, mine := s.small(words)
	return mine && answer(reply)
}
