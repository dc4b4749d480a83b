package scripts_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// TestNames: what a header declares is what the script uses. Every name is used, none is used that nothing declares, none is hidden by
// a local of the script or of a part that it includes, and none is written as a number.
func TestNames(t *testing.T) {
	locals := regexp.MustCompile(`(?m)^(?:local (?:function )?)([a-z_][\w, ]*)`)
	for _, s := range scripts.All() {
		code := regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(s.Source, "")
		declared := map[string]bool{}
		for table, list := range map[string][]scripts.Argument{"KEYS": s.Keys, "ARGV": s.Args} {
			optional := false
			for i, a := range list {
				assert.False(t, declared[a.Name], "%s: %s is declared twice", s.Name, a.Name)
				declared[a.Name] = true
				assert.False(t, optional && !a.Optional, "%s: %s can be left out only with all that follow it", s.Name, list[max(i-1, 0)].Name)
				optional = a.Optional
				if !a.Rest {
					assert.Greater(t, len(regexp.MustCompile(`\b`+a.Name+`\b`).FindAllString(code, 2)), 1, "%s does not use %s", s.Name, a.Name)
				}
			}
			places := regexp.MustCompile(table+`\[\d+\]`).FindAllString(code, -1)
			slices.Sort(places)
			assert.Equal(t, places, slices.Compact(slices.Clone(places)), "%s writes a place as a number", s.Name)
		}
		bound := map[string]bool{}
		for _, m := range locals.FindAllStringSubmatch(code, -1) {
			for _, name := range strings.Split(m[1], ",") {
				name = strings.TrimSpace(name)
				assert.False(t, declared[name] && bound[name], "%s hides %s", s.Name, name)
				bound[name] = true
			}
		}
		for name := range globals(t, s) {
			assert.Contains(t, []string{"KEYS", "ARGV", "redis", "cjson", "string", "math", "table", "tonumber", "type", "pcall", "ipairs", "unpack"}, name,
				"%s uses a name that nothing declares", s.Name)
		}
	}
}

// globals compiles a script and returns the names that it does not declare.
func globals(t *testing.T, s *scripts.Script) map[string]bool {
	chunk, err := parse.Parse(strings.NewReader(s.Source), s.Name)
	require.NoError(t, err)
	proto, err := lua.Compile(chunk, s.Name)
	require.NoError(t, err)
	names := map[string]bool{}
	for todo := []*lua.FunctionProto{proto}; len(todo) > 0; todo = todo[1:] {
		todo = append(todo, todo[0].FunctionPrototypes...)
		for _, code := range todo[0].Code {
			if op := int(code >> 26); op == lua.OP_GETGLOBAL || op == lua.OP_SETGLOBAL {
				names[todo[0].Constants[code&0x3ffff].String()] = true
			}
		}
	}
	return names
}
