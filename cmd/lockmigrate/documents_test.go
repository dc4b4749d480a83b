package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

var (
	printed  = regexp.MustCompile("(?m)^    (?:\\$ )?(lockmigrate .*)$|^    go run \\./cmd/(lockmigrate .*)$|`(lockmigrate [a-z-][^`]*)`")
	longWait = regexp.MustCompile(`(--(?:for|watch)) [0-9]+[mh]\b`)
	longRun  = regexp.MustCompile(`--run [0-9]+[mh]\b`)
	filled   = map[string]string{ // what a reader fills in
		"explore --claim NAME": "explore --claim LB-ahead", "stage --namespace NAME": "stage --namespace orders", "stage --namespace to-b": "stage --namespace orders",
		"fence --user NAME": "fence --user java-orders", "doctor --user NAME": "doctor --user orders-service",
		"FILE": "testdata/scenarios/late_release.txt", "FOLDER": "folder", "DIR": "folder",
	}
	// The lines that end otherwise than with 0, as the documents say of them.
	endings = map[string]int{
		"doctor --match 'lock:*' --user orders --use 'modern FenceTTL'":   exitUnsafe, // rights are missing
		"verify --match 'lock:*' --for 4s --longest-silence 3s --monitor": exitUnsafe, // it sees the old client
		"verify --namespace orders --for 20s":                             exitUsage,  // shorter than the record's longest silence
		"rehearse fleet.json --redis redis://127.0.0.1:6390":              exitUnsafe, // this server is not empty
	}
)

// TestEveryOtherCommandOfTheDocumentsRuns runs each line of the documents that begins with lockmigrate, as printed, against a real server: what
// the line speaks of is there, a server's address is this server's, and waits are shorter. The runbook has a test of its own. A line that only
// names a command is asked for its help.
func TestEveryOtherCommandOfTheDocumentsRuns(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	s := redistest.Real(t)
	for _, user := range []string{"java-orders", "orders-service"} {
		s.Do("ACL", "SETUSER", user, "on", ">pw", "~*", "&*", "+@all")
	}
	s.Do("ACL", "SETUSER", "orders", "on", ">pw", "~lock:*", "&*", "+@all")
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer func() { stop(); clients.Wait() }()
	for _, key := range []string{"lock.order.7", "lock.order.7", "lock:job:7"} {
		clients.Go(func() { oldClient(ctx, t, s, key, 30*time.Second, 0, 10*time.Millisecond, 10*time.Millisecond) })
	}
	t.Chdir(t.TempDir())
	for _, folder := range []string{"testdata", "clients"} { // what the lines name
		require.NoError(t, os.Symlink(filepath.Join(root, folder), folder))
	}
	require.NoError(t, os.Symlink(filepath.Join(root, "cmd", "lockmigrate", "testdata", "redis.pcap"), "redis.pcap"))
	examples, err := txtar.ParseFile(filepath.Join(root, "cmd", "lockmigrate", "testdata", "script", "forecast.txtar"))
	require.NoError(t, err)
	fleet := examples.Files[slices.IndexFunc(examples.Files, func(f txtar.File) bool { return f.Name == "skewed.json" })].Data
	require.NoError(t, os.WriteFile("small.json", fleet, 0o600))
	require.NoError(t, os.Symlink(filepath.Join(root, "cmd", "lockmigrate", "testdata", "fence.jsonl"), "lockmigrate-fence.jsonl"))
	plays, err := os.ReadFile("testdata/scenarios/late_release.txt")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("fleet.txt", plays, 0o600))
	require.NoError(t, os.WriteFile("traffic.txt", []byte(`1700000000.000001 [0 127.0.0.1:1] "SETNX" "lock:1" "1700000030001"`+"\n"), 0o600))
	ran := map[string]bool{}
	for _, file := range append([]string{filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md"), filepath.Join(root, "SECURITY.md")}, documents...) {
		if strings.HasSuffix(file, ".zh-CN.md") || filepath.Base(file) == "runbook.md" {
			continue // the Chinese pages have the English ones' lines, byte by byte
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range printed.FindAllStringSubmatch(string(text), -1) {
			line, _, _ := strings.Cut(strings.TrimPrefix(m[1]+m[2]+m[3], "lockmigrate "), "  #")
			if strings.Contains(line, "...") || ran[line] {
				continue
			}
			ran[line] = true
			runPrinted(t, s, filepath.Base(file), line)
		}
	}
	assert.Greater(t, len(ran), 40)
}

// TestTheChapterOnSidecarsRuns: the script takes the chapter's lines as they are printed, in their order.
func TestTheChapterOnSidecarsRuns(t *testing.T) {
	book, err := os.ReadFile("../../docs/handover.md")
	require.NoError(t, err)
	script, err := os.ReadFile("testdata/real/sidecar-handover.txtar")
	require.NoError(t, err)
	_, chapter, _ := strings.Cut(string(book), "## Services that nobody changes")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	here := strings.NewReplacer("'", "", "--new redis://b:6379/0", "--new redis://$SERVER", " --redis redis://b:6379/0", "", "redis://a:6379/0", "redis://$A",
		"127.0.0.1:6380", "$SIDE", "25h", "500ms", "26h", "600ms", "to-b.certificate.json", "$WORK/to-b.certificate.json")
	left, lines := string(script), 0
	for line := range strings.Lines(chapter) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "lockmigrate ") {
			continue
		}
		lines++
		runs := false
		_, left, runs = strings.Cut(left, here.Replace(line))
		require.True(t, runs, "the script does not run %q there", line)
	}
	assert.Equal(t, 7, lines)
}

// runPrinted makes what the line speaks of, and runs it.
func runPrinted(t *testing.T, s *redistest.Server, file, line string) {
	t.Helper()
	want := endings[line]
	line, _, _ = strings.Cut(line, " > ") // what it prints may go into a file
	place := file + ": lockmigrate " + line
	for blank, value := range filled {
		line = strings.ReplaceAll(line, blank, value)
	}
	words := shellWords(t, longWait.ReplaceAllString(hasty.Replace(line), "$1 1s"))
	if words[len(words)-1] == "--scenario" { // a flag by its name
		words, line = words[:len(words)-1], words[0]
	}
	named := words[0] != "demo" && !strings.Contains(line, " -") && (words[0] != "next" && words[0] != "completion" && !strings.HasPrefix(line, "forecast ") && line != "stage list")
	switch {
	case named || strings.HasSuffix(line, "--help"):
		stdout, _ := expect(t, exitDone, append(words, "--help")...)
		assert.Contains(t, stdout, "Usage:", place)
		return
	case strings.Contains(line, "--listen"): // until it is told to stop
		runProxy(t, s, place, words)
		return
	case strings.HasSuffix(line, "--resume orders.json.state"):
		interruptedVerify(t, s)
	case words[0] == "forecast":
		fleet, err := os.ReadFile("small.json") // what the old clients here do all day takes long to draw
		require.NoError(t, err)
		if observed, err := os.ReadFile(words[1]); err == nil {
			defer func() { require.NoError(t, os.WriteFile(words[1], observed, 0o600)) }()
		}
		require.NoError(t, os.WriteFile(words[1], fleet, 0o600))
		if !strings.Contains(line, "--scenario") {
			words = append(words, "--draws", "20", "--span", "24h")
		}
	case strings.Contains(line, "scale.txt"): // an hour of it is minutes of computing
		words = shellWords(t, longRun.ReplaceAllString(line, "--run 100ms"))
		if !strings.Contains(line, "--run") {
			words = append(words, "--run", "100ms")
		}
	case words[0] == "stage" && words[1] == "init": // it reads what the line before has observed
		forget(s)
		profile, err := os.ReadFile("orders.profile.json")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile("observed.json", profile, 0o600))
		if n := slices.Index(words, "--old"); n > 0 { // the server that a handover leaves
			words[n+1] = redistest.Real(t).URL()
		}
	case strings.HasPrefix(line, "verify --namespace orders"):
		forget(s)
		store := &stages.Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
		require.NoError(t, store.Init(t.Context(), stages.Record{Patterns: []string{"lock.order.*"}, Dialect: "jedis-ms", Shortest: 10 * time.Second, Longest: 30 * time.Second, Stage: stages.Bridge}))
	case words[0] == "stage":
		at := stages.Bridge
		switch {
		case strings.Contains(line, "advance") && strings.Contains(line, "--to bridge"):
			at = stages.Legacy
		case strings.Contains(line, "--to bridge"):
			at = stages.Modern
		}
		forget(s)
		store := &stages.Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
		require.NoError(t, store.Init(t.Context(), stages.Record{Patterns: []string{"lock.order.*"}, Dialect: "jedis-ms", Shortest: 10 * time.Second, Stage: at}))
		if strings.Contains(line, "--shortest-lease 20s") {
			words = append(words, "--force", "the old clients' shortest lease was measured again")
		}
	case words[0] == "demo":
		words = append(words, "--act", "300ms")
	}
	if !slices.Contains([]string{"simulate", "forecast", "explore", "completion", "scripts", "--version"}, words[0]) {
		words = append(words, "--redis", s.URL())
	}
	ctx := redistest.Bounded(t, hung)
	began := time.Now()
	code, stdout, stderr := lockmigrateIn(ctx, false, words...)
	t.Logf("%5d ms  %s", time.Since(began).Milliseconds(), place)
	assert.Equal(t, want, code, "%s: %s%s", place, stdout, stderr)
	assert.NotEmpty(t, stdout+stderr, place)
}

// runProxy runs a line that listens for clients until one has been served, and ends it.
func runProxy(t *testing.T, s *redistest.Server, place string, words []string) {
	t.Helper()
	forget(s)
	store := &stages.Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
	require.NoError(t, store.Init(t.Context(), stages.Record{Patterns: []string{"lock.order.*"}, Dialect: "jedis-ms", Shortest: 10 * time.Second, Stage: stages.Bridge}))
	address := redistest.FreeAddr(t)
	for n, word := range words {
		switch word {
		case "--listen":
			words[n+1] = address
		case "--redis":
			words[n+1] = s.URL()
		case "--new": // the server to which a handover leads, with its record
			words[n+1] = redistest.Real(t).URL()
			expect(t, exitDone, "stage", "init", "--handover", "--namespace", words[slices.Index(words, "--handover")+1], "--match", "lock.order.*", "--old", s.URL(), "--execute", "--redis", words[n+1])
		}
	}
	_ = os.Remove("orders.profile.json") // observe writes it when its window is over
	ctx, stop := context.WithTimeout(t.Context(), hung)
	defer stop()
	ended := make(chan struct{})
	var code int
	var stdout, stderr string
	go func() {
		defer close(ended)
		code, stdout, stderr = lockmigrateIn(ctx, false, words...)
	}()
	var client redis.Conn
	require.Eventually(t, func() bool {
		c, err := redis.Dial("tcp", address)
		client = c
		return err == nil
	}, time.Minute, 10*time.Millisecond, place)
	expiry := time.Now().Add(10 * time.Second).UnixMilli()
	taken, err := redis.Int(client.Do("SETNX", "lock.order.99", expiry))
	require.NoError(t, err, place)
	assert.Equal(t, 1, taken, place)
	found := s.Value("lock.order.99")
	_, err = client.Do("DEL", "lock.order.99")
	require.NoError(t, err, place)
	require.NoError(t, client.Close())
	switch {
	case slices.Contains(words, "--handover"): // at stage old the old lock stands there
	case words[0] == "sidecar":
		assert.NotEqual(t, fmt.Sprint(expiry), found, "%s: a token", place)
	default:
		assert.Equal(t, fmt.Sprint(expiry), found, "%s: passed on", place)
		assert.Eventually(t, func() bool { _, err := os.Stat("orders.profile.json"); return err == nil }, time.Minute, 20*time.Millisecond, place)
	}
	stop()
	<-ended
	assert.Equal(t, exitDone, code, "%s: %s%s", place, stdout, stderr)
	if words[0] == "observe" {
		assert.Contains(t, stdout, "lock.order.#", place)
	}
}

// interruptedVerify leaves the state of a run that was interrupted behind, for --resume.
func interruptedVerify(t *testing.T, s *redistest.Server) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan int, 1)
	s.Do("SET", "quiet:live", "token", "PX", 600_000) // a service's lock
	go func() {
		code, _, _ := lockmigrateIn(ctx, false, "verify", "--match", "quiet:*", "--for", "4s", "--longest-silence", "1s", "--monitor", "--out", "orders.json", "--redis", s.URL())
		ended <- code
	}()
	require.Eventually(t, func() bool { _, err := os.Stat("orders.json.state"); return err == nil }, time.Minute, 20*time.Millisecond)
	stop()
	assert.NotEqual(t, exitDone, <-ended, "it is not over")
}

// forget removes every namespace.
func forget(s *redistest.Server) {
	s.Do("DEL", stages.ListKey)
	for _, namespace := range []string{"orders", "orders-to-b", "to-b"} {
		s.Do("DEL", stages.RecordKey(namespace), stages.MembersKey(namespace))
	}
}

var (
	goTest   = regexp.MustCompile("(?:`|^    )((?:cd [a-z/]+ && )?[A-Z_=a-z0-9,]* ?[A-Z_=0-9a-z]* ?)go test ([^`\n#]*)")
	goMake   = regexp.MustCompile("(?m)(?:`|^    )make ([a-z-]+)")
	asked    = regexp.MustCompile(`-(run|bench) '?([A-Za-z|]+)'?`)
	packages = regexp.MustCompile(`\./[a-z/]+`)
)

// TestTheDocumentsTestsAndTargetsExist: behind each `go test` line there is a package with a test or benchmark of that name, and behind each
// `make` line a target. CI runs these; here they would take minutes.
func TestTheDocumentsTestsAndTargetsExist(t *testing.T) {
	root := filepath.Join("..", "..")
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	top, err := filepath.Glob(filepath.Join(root, "*.md"))
	require.NoError(t, err)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	tests, targets := 0, 0
	for _, file := range append(documents, top...) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range goMake.FindAllStringSubmatch(string(text), -1) {
			targets++
			assert.Regexp(t, `(?m)^`+m[1]+`:`, string(makefile), "%s: make %s", filepath.Base(file), m[1])
		}
		for _, m := range goTest.FindAllStringSubmatch(string(text), -1) {
			folder := root
			if into, found := strings.CutPrefix(m[1], "cd "); found {
				folder = filepath.Join(root, strings.Fields(into)[0])
			}
			if p := packages.FindString(m[2]); p != "" {
				folder = filepath.Join(folder, p)
			}
			for _, name := range asked.FindAllStringSubmatch(m[2], -1) {
				if name[2] == "xxx" {
					continue // no test, only benchmarks
				}
				kind := map[string]string{"run": "Test", "bench": "Benchmark"}[name[1]]
				for _, part := range strings.Split(name[2], "|") {
					tests++
					output, err := exec.Command("grep", "-lE", fmt.Sprintf(`^func %s[A-Za-z0-9]*%s`, kind, strings.TrimPrefix(part, kind)), "-r", folder, "--include=*_test.go").CombinedOutput()
					assert.NoError(t, err, "%s: go test %s: nothing is called so: %s", filepath.Base(file), m[2], output)
				}
			}
		}
	}
	assert.Greater(t, tests, 8)
	assert.Greater(t, targets, 8)
}

//go:embed testdata/probe.js
var probe string

// TestReportInABrowser opens a report on a screen and on a phone, light and dark. With a folder in LOCKMIGRATE_SCREENSHOTS the screens are kept there.
func TestReportInABrowser(t *testing.T) {
	redistest.Need(t, redistest.Browser)
	scripts, err := txtar.ParseFile(filepath.Join("testdata", "script", "forecast.txtar"))
	require.NoError(t, err)
	fleet := scripts.Files[slices.IndexFunc(scripts.Files, func(f txtar.File) bool { return f.Name == "skewed.json" })].Data
	const hostile = `java-2 <img src=x onerror=\"document.title='pwned'\"> of-a-very-long-name-that-has-no-place-to-break.example.com`
	file, page := filepath.Join(t.TempDir(), "fleet.json"), filepath.Join(t.TempDir(), "forecast.html")
	require.NoError(t, os.WriteFile(file, bytes.ReplaceAll(fleet, []byte("java-2"), []byte(hostile)), 0o600))
	lockmigrateIn(t.Context(), false, "forecast", file, "--span", "24h", "--draws", "20", "--failovers", "every=1h,outage=1s,behind=2s", "--html", page)
	b := redistest.NewChromium(t)
	for _, view := range []redistest.View{{Width: 1280, Height: 900}, {Width: 1280, Height: 900, Dark: true}, {Width: 390, Height: 844}, {Width: 390, Height: 844, Dark: true}} {
		shown := fmt.Sprintf("forecast-%d-%v", view.Width, map[bool]string{true: "dark", false: "light"}[view.Dark])
		t.Run(shown, func(t *testing.T) {
			b.Open(t, "file://"+page+"?"+shown, view, "document.querySelectorAll('section').length > 5")
			if keep := os.Getenv("LOCKMIGRATE_SCREENSHOTS"); keep != "" {
				b.Picture(t, filepath.Join(keep, shown+".png"), 0)
			}
			var saw struct {
				Title                                string
				Wide, Cut, Overlaps, Requests, Small int
				Dark                                 bool
			}
			b.Eval(t, probe, &saw)
			require.Equal(t, "Double holds to come", saw.Title)
			require.Zero(t, saw.Wide, "the page does not scroll sideways")
			require.Zero(t, saw.Cut, "nothing is cut off")
			require.Zero(t, saw.Overlaps, "no cell covers another")
			require.Zero(t, saw.Requests, "nothing is loaded")
			require.Zero(t, saw.Small, "nothing is too small to read")
			require.Equal(t, view.Dark, saw.Dark)
		})
	}
}
