package lockmigrate_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestFramesAreSmall bounds the stack frame of each function that a client of the locks runs. A goroutine that
// has called a function once keeps a stack that holds its frame, at least until the garbage collector runs, and a
// service may have thousands of goroutines at a lock, or one for each acquisition, whose stack has to grow first.
func TestFramesAreSmall(t *testing.T) {
	redistest.Need(t, redistest.Proofs) // it compiles everything with a listing
	const most = 4 << 10                // bytes: that of an acquisition, ten functions deep, needs 8 KB of stack with these
	clients := []string{"./legacy", "./modern", "./compat", "./pool/cluster", "./pool/sentinel"}

	list, err := exec.Command("go", append([]string{"list", "-deps", "-f", "{{.ImportPath}} {{.Dir}}"}, clients...)...).Output()
	if err != nil {
		t.Fatalf("list the packages: %v", err)
	}
	var ours []string
	for line := range strings.Lines(string(list)) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		if path == module || strings.HasPrefix(path, module+"/") {
			ours = append(ours, path)
			if _, err := os.ReadDir(dir); err != nil { // go test keeps no result of before a change there
				t.Fatal(err)
			}
		}
	}
	assembly, err := exec.Command("go", append([]string{"build", "-gcflags=" + module + "/...=-S"}, ours...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("compile: %v\n%.2000s", err, assembly)
	}
	frame := regexp.MustCompile(`(?m)^(\S+) STEXT .*\blocals=0x([0-9a-f]+)`)
	seen, packages := 0, map[string]bool{}
	for _, m := range frame.FindAllStringSubmatch(string(assembly), -1) {
		size, err := strconv.ParseInt(m[2], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		seen++
		for _, path := range ours {
			if strings.HasPrefix(m[1], path+".") {
				packages[path] = true
			}
		}
		if size > most {
			t.Errorf("%s has a stack frame of %d bytes, at most %d are allowed", m[1], size, most)
		}
	}
	// Without this, an output in another form would pass.
	if seen < 500 || len(packages) < len(ours)-3 {
		t.Fatalf("only %d functions of %d of %d packages were found", seen, len(packages), len(ours))
	}
}
