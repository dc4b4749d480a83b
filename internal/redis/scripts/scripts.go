// Package scripts holds the project's server scripts. Each is one .lua file whose header documents
// its keys, arguments and replies, and why it must be atomic.
//
// The header names the keys and arguments, a line each, in the order of the call:
//
//	-- KEYS key      the lock's key
//	-- ARGV value    the value that it must hold
//	-- ARGV [entry]  what may be left out at the end, in brackets
//	-- ARGV pairs... any number of values
//	-- WORD name     of all words together ARGV[1] is made, with a space between two; only the last one may hold spaces
//
// A line "-- include FILE" puts a shared part in its place. The script uses the names of its header; load binds each before the
// first part that uses it. A caller gives the values by the same names: [Script.Call] for a
// map, package wire for a command.
//
// # A new argument
//
// For a bridge script, these files change:
//
//   - internal/redis/scripts/NAME.lua: a line of the header, and its use
//   - internal/redis/scripts/testdata/NAME.txt: an example
//   - internal/protocol/protocol.go: a field of Command; internal/protocol/bridge.go: who sets it
//   - internal/redis/wire/script.go: a case of argument, from the field to the name
//   - internal/simulate/model/bridge.go: the same rule for the explorer and the simulator
//   - clients/java, Machines.java, and clients/python, _machines.py: a value; `go test ./internal/redis/scripts -update` brings them the script
//   - compat/options.go, where a user chooses it
//
// A name that nobody fills in stops the program when it starts, and the other libraries when they read the script.
package scripts

import (
	"crypto/sha1" // EVALSHA's own digest, not a protection
	"embed"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

//go:embed *.lua
var files embed.FS

// The scripts, by what they do.
var (
	CompareDel = load("compare_del.lua")
	CompareSet = load("compare_set.lua")

	ModernTake    = load("modern_take.lua")
	ModernExtend  = load("modern_extend.lua")
	ModernQueue   = load("modern_queue.lua")
	ModernRelease = load("modern_release.lua")

	RedissonTake    = load("modern_redisson_take.lua")
	RedissonExtend  = load("modern_redisson_extend.lua")
	RedissonRelease = load("modern_redisson_release.lua")

	BridgeAcquire = load("bridge_acquire.lua")
	BridgeSettle  = load("bridge_settle.lua")
	BridgeRenew   = load("bridge_renew.lua")
	BridgeRelease = load("bridge_release.lua")

	SweepExpire = load("sweep_expire.lua")
	FenceRaise  = load("fence_raise.lua")

	GatedWrite      = load("gated_write.lua")
	GatedCompareSet = load("gated_compare_set.lua")

	SidecarTake = load("sidecar_take.lua")
	SidecarGet  = load("sidecar_get.lua")
	SidecarDel  = load("sidecar_del.lua")
	SidecarKeep = load("sidecar_keep.lua")
	SidecarRun  = load("sidecar_run.lua")

	StageInit   = load("stage_init.lua")
	StageJoin   = load("stage_join.lua")
	StageLeave  = load("stage_leave.lua")
	StageMove   = load("stage_move.lua")
	StageShow   = load("stage_show.lua")
	StageSet    = load("stage_set.lua")
	StageDelete = load("stage_delete.lua")
	StageClaim  = load("stage_claim.lua")
	StageList   = load("stage_list.lua")
)

// Script is one server script.
type Script struct {
	Name       string // the file's name
	Source     string
	Digest     string // SHA-1 of Source, as EVALSHA wants it
	ByDigest   any    // Digest, boxed once and not with every call
	Keys, Args []Argument
	Words      []Argument // packed into one argument: Pack
}

// Pack makes the one argument of the words, which value gives by their names.
func (s *Script) Pack(value func(name string) any) string {
	packed := make([]byte, 0, 160)
	for i, w := range s.Words {
		if i > 0 {
			packed = append(packed, ' ')
		}
		switch v := value(w.Name).(type) {
		case string:
			packed = append(packed, v...)
		case int64:
			packed = strconv.AppendInt(packed, v, 10)
		default:
			packed = fmt.Append(packed, v)
		}
	}
	return string(packed)
}

// Read is the other way round: it returns the arguments and words of a call by their names. Of words, the last one is the rest.
func (s *Script) Read(args []string) map[string]string {
	named := map[string]string{}
	for i, a := range s.Args {
		if i < len(args) {
			named[a.Name] = args[i]
		}
	}
	if len(s.Words) > 0 && len(args) > 0 {
		for i, text := range strings.SplitN(args[0], " ", len(s.Words)) {
			named[s.Words[i].Name] = text
		}
	}
	return named
}

// Bare is a script without its comments.
func (s *Script) Bare() string {
	var code strings.Builder
	code.Grow(len(s.Source))
	for line := range strings.Lines(s.Source) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			code.WriteString(line + "\n")
		}
	}
	return code.String()
}

// Around is sidecar_run.lua, without comments, with another script in the place of its command.
func (s *Script) Around(body string) string {
	first := ""
	if strings.HasPrefix(body, "#!") { // it says on which engine, and must stay the first line
		first, body, _ = strings.Cut(body, "\n")
		first += "\n"
	}
	code := s.Bare()
	at := strings.Index(code, ownBody)
	return first + code[:at] + "local function body() " + body + "\nend\n" + code[at+len(ownBody):]
}

const ownBody = "local function body() return redis.pcall(unpack(ARGV)) end\n"

// Argument is a key or an argument, as the header names it.
type Argument struct {
	Name     string
	Optional bool // it may be left out, with all that follow it
	Rest     bool // all values from here on, as a []any
}

// Values are the keys and arguments of one call, by name.
type Values map[string]any

// Call returns what follows the digest of EVALSHA, or the text of EVAL: the number of keys, the keys and the arguments. It is
// an error when a value is missing, or has a name that the script does not know.
func (s *Script) Call(values Values) ([]any, error) {
	call, used := []any{0}, 0
	for i, list := range [][]Argument{s.Keys, s.Args} {
		left := ""
		for _, a := range list {
			v, given := values[a.Name]
			switch {
			case !given && a.Optional:
				left = a.Name
				continue
			case !given:
				return nil, fmt.Errorf("%s needs %s", s.Name, a.Name)
			case left != "":
				return nil, fmt.Errorf("%s needs %s before %s", s.Name, left, a.Name)
			case a.Rest:
				call = append(call, v.([]any)...)
			default:
				call = append(call, v)
			}
			used++
		}
		if i == 0 {
			call[0] = len(call) - 1
		}
	}
	if len(s.Words) > 0 {
		call = append(call, s.Pack(func(name string) any {
			used++
			return values[name]
		}))
	}
	if used != len(values) {
		return nil, fmt.Errorf("%s knows not all of %v", s.Name, slices.Sorted(maps.Keys(values)))
	}
	return call, nil
}

func digest(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// load reads a script, puts the shared parts in their places and binds the names of its header.
func load(name string) *Script {
	s := &Script{Name: name}
	pieces := cut(name)
	for line := range strings.Lines(pieces[0].header) {
		if rest, ok := strings.CutPrefix(line, "-- KEYS "); ok {
			s.Keys = append(s.Keys, argument(rest))
		} else if rest, ok := strings.CutPrefix(line, "-- ARGV "); ok {
			s.Args = append(s.Args, argument(rest))
		} else if rest, ok := strings.CutPrefix(line, "-- WORD "); ok {
			s.Words = append(s.Words, argument(rest))
		}
	}
	s.Source = s.compose(pieces)
	s.Digest = digest(s.Source)
	s.ByDigest = s.Digest
	all = append(all, s)
	return s
}

// argument reads a line of a header, from the name on.
func argument(line string) Argument {
	word := strings.Fields(line)[0]
	name := strings.Trim(word, "[].")
	return Argument{Name: name, Optional: word[0] == '[', Rest: strings.HasSuffix(word, "...")}
}

// compose returns the script as the server gets it. A name is bound as late as it can be: before the first piece that uses it. So the
// usual case pays for nothing that only the others need.
func (s *Script) compose(pieces []piece) string {
	var source strings.Builder
	length := 400 // the bindings
	for _, piece := range pieces {
		length += len(piece.header) + len(piece.code)
	}
	source.Grow(length)
	bound := map[string]bool{}
	for _, piece := range pieces {
		var names, places []string
		bind := func(table string, list []Argument) {
			for i, a := range list {
				if piece.uses[a.Name] && !a.Rest && !bound[a.Name] {
					names, places, bound[a.Name] = append(names, a.Name), append(places, fmt.Sprintf("%s[%d]", table, i+1)), true
				}
			}
		}
		bind("KEYS", s.Keys)
		bind("ARGV", s.Args)
		words := s.unpack(piece.uses, bound)
		source.WriteString(piece.header)
		if len(names) > 0 {
			fmt.Fprintf(&source, "local %s = %s\n", strings.Join(names, ", "), strings.Join(places, ", "))
		}
		source.WriteString(words + piece.code)
	}
	return source.String()
}

// unpack binds all words before the first piece that uses one.
func (s *Script) unpack(used, bound map[string]bool) string {
	if bound["ARGV"] || !slices.ContainsFunc(s.Words, func(a Argument) bool { return used[a.Name] }) {
		return ""
	}
	bound["ARGV"] = true
	var names []string
	for _, a := range s.Words {
		names = append(names, a.Name)
	}
	return fmt.Sprintf("local %s = string.match(ARGV[1], '^%s(.*)$')\n", strings.Join(names, ", "), strings.Repeat("(%S+) ", len(names)-1))
}

// piece is an included file, or what stands between two of them.
type piece struct {
	header, code string
	uses         map[string]bool // the words of the code
}

// cuts are the files that were cut, while the scripts are loaded: many include the same ones, and every program loads all scripts when it
// starts.
var cuts = map[string][]piece{}

func init() { cuts = nil } // after load of the variables above

// cut cuts a file at its includes, and puts the included files between the pieces.
func cut(file string) []piece {
	all, known := cuts[file]
	if known {
		return all
	}
	parts := strings.Split(read(file), "-- include ")
	all = appendPiece(nil, parts[0])
	for _, part := range parts[1:] {
		included, rest, _ := strings.Cut(part, "\n")
		all = appendPiece(append(all, cut(included)...), rest)
	}
	cuts[file] = all
	return all
}

func appendPiece(all []piece, text string) []piece {
	if text == "" {
		return all
	}
	p := piece{code: text, uses: map[string]bool{}}
	for strings.HasPrefix(p.code, "--") {
		_, p.code, _ = strings.Cut(p.code, "\n")
	}
	p.header = text[:len(text)-len(p.code)]
	for line := range strings.Lines(p.code) {
		line, _, _ = strings.Cut(line, "--")
		for word := range strings.FieldsFuncSeq(line, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
			p.uses[word] = true
		}
	}
	return append(all, p)
}

func read(file string) string {
	text, err := files.ReadFile(file)
	if err != nil {
		panic(err) // embedded at build time: a missing file is a programming error
	}
	return string(text)
}
