// Package redistest gives tests their servers: an embedded one always, real ones where the run asks
// for them.
//
// # Suites
//
// LOCKMIGRATE_SUITES names, separated by commas, the components that this run is to use: redis, java,
// python, node, php, gohold, browser, checkers, image, netns, servers, postgres, etcd,
// proofs, or all. A test that needs one which is not named is left out and says so; one
// that is named and missing is a failure. So `go test ./...` passes with nothing but Go, and
// `make test` cannot pass by leaving something out: it names all of them, but for netns where the machine
// does not allow it, which scripts/suites then says.
package redistest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// Components that a suite may need.
const (
	Redis    = "redis"    // redis-server on the PATH
	Java     = "java"     // the Java holders, built by testdata/holders/setup
	Python   = "python"   // the Python holders, built by testdata/holders/setup
	Node     = "node"     // the Node holders, built by testdata/holders/setup
	PHP      = "php"      // the PHP holder: Laravel's cache lock and the redis extension
	GoHold   = "gohold"   // the Go holders of other modules' locks, built by testdata/holders/setup
	Browser  = "browser"  // headless Chromium
	Checkers = "checkers" // promtool and shellcheck on the PATH
	Image    = "image"    // root, and minutes: the static program of the Dockerfile, in an empty root
	NetNS    = "netns"    // network namespaces, as root
	Servers  = "servers"  // servers of other versions, built by scripts/servers
	Postgres = "postgres" // PostgreSQL, in /usr/lib/postgresql as Debian has it
	Etcd     = "etcd"     // etcd on the PATH
	Proofs   = "proofs"   // large searches, and grids, sweeps and random rounds at full size: minutes of computing; fleets that play in real time
)

// Violated says in a failure's message that two were inside at once where that must not be: what to look for first where a run is red.
const Violated = "EXCLUSION VIOLATED"

// Wanted tells whether this run is to use a component.
func Wanted(component string) bool {
	named := strings.Split(os.Getenv("LOCKMIGRATE_SUITES"), ",")
	return slices.Contains(named, component) || slices.Contains(named, "all")
}

// Thorough tells whether this run computes what fills a processor for minutes: it names Proofs, and the race detector, with which that
// takes ten times as long, does not watch. scripts/test makes such a run too.
func Thorough() bool { return Wanted(Proofs) && !Raced }

// Unraced leaves the test out where the race detector watches: what the test measures changes, or it computes for long in one goroutine.
func Unraced(t testing.TB) {
	t.Helper()
	if Raced {
		t.Skip("left out: the race detector changes what is measured, or makes it last ten times as long; scripts/test runs it without")
	}
}

// Rounds is how often a test repeats something random: few times in the quick loop, and all times where the run names Proofs.
func Rounds(few, all int) int {
	if Wanted(Proofs) {
		return all
	}
	return few
}

// Need leaves the test out unless this run is to use all the components.
func Need(t testing.TB, components ...string) {
	t.Helper()
	for _, c := range components {
		if !Wanted(c) {
			t.Skipf("left out: needs %s; `make test` runs it (LOCKMIGRATE_SUITES=%s here)", c, os.Getenv("LOCKMIGRATE_SUITES"))
		}
	}
}

// Main runs the tests of a package in which every test needs the components, and removes what they have Built. Where the run does not
// name them, the package reports "no tests to run", which `go test` shows beside its name.
func Main(m interface{ Run() int }, components ...string) {
	for _, c := range components {
		if !Wanted(c) {
			fmt.Printf("left out: this suite needs %s; `make test` runs it\n", strings.Join(components, ", "))
			fmt.Println("testing: warning: no tests to run") // the words that go test looks for
			os.Exit(0)
		}
	}
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// Leakless is a package's tests, for Main: they fail where goroutines are left behind.
type Leakless struct{ *testing.M }

// Run runs them.
func (m Leakless) Run() int {
	code := m.M.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Println(err)
		return 1
	}
	return code
}
