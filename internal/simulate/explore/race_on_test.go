//go:build race

package explore

// searchLimit keeps the tests short where every memory access is watched: larger searches are left to
// the run without it, and to `lockmigrate explore`.
const searchLimit = 60_000
