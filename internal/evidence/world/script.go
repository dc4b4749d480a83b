package world

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	luajson "github.com/alicebob/miniredis/v2/gopher-json"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// running is a script under way.
type running struct {
	sha   string
	wrote bool // from then on nothing is refused for want of memory
}

// engine runs scripts. As in Redis, what one script leaves in its globals the next one finds; unlike miniredis, which makes a new
// engine for each call.
type engine struct {
	state    *lua.LState
	compiled map[*lua.FunctionProto]*lua.LFunction
	ok       *lua.LTable // the commonest reply; no script writes to it
	server   *Server     // whose script runs
	client   *client
}

var engines = sync.Pool{New: func() any { return newEngine() }}

func newEngine() *engine {
	e := &engine{state: lua.NewState(lua.Options{SkipOpenLibs: true}), compiled: make(map[*lua.FunctionProto]*lua.LFunction)}
	l := e.state
	e.ok = table("ok", "OK")
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
		"json": luajson.Loader,
	} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 1)
		if name == "json" {
			l.SetGlobal("cjson", l.Get(-1))
		}
		l.Pop(1)
	}
	l.SetGlobal("redis", l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{
		"call":               func(l *lua.LState) int { return e.call(true) },
		"pcall":              func(l *lua.LState) int { return e.call(false) },
		"error_reply":        func(l *lua.LState) int { return push(l, table("err", strings.TrimPrefix(l.CheckString(1), "-"))) },
		"status_reply":       func(l *lua.LState) int { return push(l, table("ok", l.CheckString(1))) },
		"replicate_commands": func(l *lua.LState) int { return push(l, lua.LTrue) },
		"log":                func(l *lua.LState) int { return 0 },
	}))
	return e
}

func push(l *lua.LState, v lua.LValue) int {
	l.Push(v)
	return 1
}

func table(name, text string) *lua.LTable {
	t := &lua.LTable{Metatable: lua.LNil}
	t.RawSetString(name, lua.LString(text))
	return t
}

// protos are the compiled scripts, by their text.
var protos sync.Map

func compile(source string) (*lua.FunctionProto, error) {
	if p, ok := protos.Load(source); ok {
		return p.(*lua.FunctionProto), nil
	}
	chunk, err := parse.Parse(strings.NewReader(source), "@user_script")
	if err != nil {
		return nil, err
	}
	p, err := lua.Compile(chunk, "@user_script")
	if err == nil {
		protos.Store(source, p)
	}
	return p, err
}

// eval runs EVAL and EVALSHA. The caller holds mu.
func (s *Server) eval(c *client, words []string) any {
	sha, source := words[1], words[1]
	if words[0] == "EVAL" {
		sha = s.load(source)
	} else if source = s.scripts[sha]; source == "" {
		return fault("NOSCRIPT No matching script. Please use EVAL.")
	}
	n, err := strconv.Atoi(words[2])
	if err != nil || n < 0 || len(words) < 3+n {
		return fault("ERR Number of keys can't be greater than number of args")
	}
	proto, err := compile(source)
	if err != nil {
		return fault("ERR Error compiling script (new function): " + strings.ReplaceAll(err.Error(), "\n", " "))
	}
	e := engines.Get().(*engine)
	defer engines.Put(e)
	s.running = &running{sha: sha}
	s.inner.Ctx = c.peer.Ctx // the database that the client has chosen
	defer func() { s.running = nil }()
	return e.run(s, c, proto, words[3:3+n], words[3+n:])
}

func (e *engine) run(s *Server, c *client, proto *lua.FunctionProto, keys, args []string) any {
	e.server, e.client = s, c
	defer func() { e.server, e.client = nil, nil }()
	l := e.state
	l.SetGlobal("KEYS", list(l, keys))
	l.SetGlobal("ARGV", list(l, args))
	f := e.compiled[proto]
	if f == nil {
		f = l.NewFunctionFromProto(proto)
		e.compiled[proto] = f
	}
	l.Push(f)
	if err := l.PCall(0, 1, nil); err != nil {
		l.SetTop(0)
		return failed(err, s.running.sha)
	}
	reply := replyOf(l.Get(-1))
	l.SetTop(0)
	return reply
}

// failed is what a script that fails replies.
func failed(err error, sha string) fault {
	text := err.Error()
	if thrown, ok := err.(*lua.ApiError); ok {
		text = thrown.Object.String()
		if t, ok := thrown.Object.(*lua.LTable); ok {
			if text = t.RawGetString("err").String(); !strings.Contains(text, "@user_script") {
				text += " script: " + sha + ", on @user_script."
			}
			return fault(text)
		}
	}
	return fault("ERR " + strings.ReplaceAll(text, "\n", " ") + " script: " + sha + ", on @user_script.")
}

func list(l *lua.LState, texts []string) *lua.LTable {
	t := l.CreateTable(len(texts), 0)
	for _, text := range texts {
		t.Append(lua.LString(text))
	}
	return t
}

// call is redis.call, and redis.pcall, which returns an error and does not raise it.
func (e *engine) call(raises bool) int {
	l := e.state
	words := make([]string, l.GetTop())
	for i := range words {
		switch v := l.Get(i + 1).(type) {
		case lua.LString:
			words[i] = string(v)
		case lua.LNumber:
			words[i] = v.String()
		default:
			return e.fails(raises, "ERR Lua redis lib command arguments must be strings or integers")
		}
	}
	if len(words) == 0 {
		return e.fails(raises, "ERR Please specify at least one argument for this redis.call() call")
	}
	words[0] = strings.ToUpper(words[0])
	reply := e.server.nested(e.client, words)
	if f, ok := reply.(fault); ok {
		return e.fails(raises, string(f))
	}
	if reply == status("OK") {
		return push(l, e.ok)
	}
	return push(l, valueOf(l, reply))
}

func (e *engine) fails(raises bool, text string) int {
	if raises {
		e.state.Error(table("err", text), 1)
	}
	return push(e.state, table("err", text))
}

// notInScripts are commands that a script may not call.
var notInScripts = []string{"EVAL", "EVALSHA", "SUBSCRIBE", "UNSUBSCRIBE", "AUTH", "CLIENT", "SCRIPT", "MULTI", "EXEC", "WATCH", "CONFIG"}

// nested runs a command of a script. The caller holds mu.
func (s *Server) nested(c *client, words []string) any {
	if refusal := s.refuses(words, s.full && !s.running.wrote); refusal != "" {
		return refusal
	}
	if slices.Contains(notInScripts, words[0]) {
		return fault("ERR This Redis command is not allowed from script")
	}
	s.count(words)
	s.running.wrote = s.running.wrote || growing[words[0]] || writing[words[0]]
	if reply, mine := s.small(c, words); mine {
		return reply
	}
	reply, _ := replyFrom(s.dispatch(s.inner, words))
	if f, ok := reply.(fault); ok && strings.HasPrefix(string(f), "ERR unknown command") {
		return fault("ERR Unknown Redis command called from script")
	}
	return reply
}

// valueOf is a reply as Lua has it.
func valueOf(l *lua.LState, reply any) lua.LValue {
	switch r := reply.(type) {
	case nil:
		return lua.LFalse
	case int64:
		return lua.LNumber(r)
	case string:
		return lua.LString(r)
	case status:
		return table("ok", string(r))
	case fault:
		return table("err", string(r))
	case []any:
		t := l.CreateTable(len(r), 0)
		for _, element := range r {
			t.Append(valueOf(l, element))
		}
		return t
	}
	panic(fmt.Sprintf("world: %T in a reply", reply))
}

// replyOf is a value of Lua as a reply.
func replyOf(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LBool:
		if v {
			return int64(1)
		}
	case lua.LNumber:
		return int64(v)
	case lua.LString:
		return string(v)
	case *lua.LTable:
		if text, ok := v.RawGetString("err").(lua.LString); ok {
			return fault(text)
		}
		if text, ok := v.RawGetString("ok").(lua.LString); ok {
			return status(text)
		}
		all := []any{}
		for i := 1; ; i++ {
			element := v.RawGetInt(i)
			if element == lua.LNil {
				return all
			}
			all = append(all, replyOf(element))
		}
	}
	return nil
}
