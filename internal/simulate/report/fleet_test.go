package report

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/browser"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

const hostileName = `java-3 <img src=x onerror="document.title='pwned'"> of-a-very-long-name-that-has-no-place-to-break.example.com`

// played is a fleet that has been played: four old clients on two kinds of keys and two masters, with failovers. The clock of one is
// 8 s ahead.
func played(t *testing.T) *Fleet {
	t.Helper()
	f := &sim.Fleet{
		Network: sim.Network{Request: sim.Fixed(time.Millisecond), Reply: sim.Fixed(time.Millisecond), Timeout: time.Second}, Until: 10 * time.Minute, Masters: 2,
		Server: sim.Server{FailoverEvery: sim.Uniform(30*time.Second, 90*time.Second), Outage: sim.Fixed(time.Second), Behind: sim.Uniform(0, 5*time.Second)},
	}
	page := &Fleet{
		From: "fleet.json", Command: "lockmigrate simulate --profile fleet.json --html fleet.html", Plays: f, Seed: 1, Seeds: 2, Next: "lockmigrate next --namespace NAME --match 'order:*'",
		Family: func(key string) string { return strings.TrimRight(key, "0123456789") + "#" },
		Replay: func(seed uint64) string {
			return fmt.Sprintf("lockmigrate replay fleet.json --seed %d --as story", seed)
		},
	}
	for i, name := range []string{"java-1", "java-2", hostileName, "java-4"} {
		c := sim.Client{
			Member: model.Member{Name: fmt.Sprint("client-", i+1), Dialect: protocol.JedisMS, Release: protocol.JedisMS.Release, Owner: fmt.Sprintf("%08x-0000-4000-8000-000000000000", i+1),
				Lease: 10 * time.Second, Poll: 100 * time.Millisecond, Patience: time.Hour},
			Hold: sim.Uniform(time.Second, 4*time.Second), Think: sim.Uniform(0, 4*time.Second), Keys: []sim.KeySet{{Prefix: "order:", Count: 4}, {Prefix: "parcel:", Count: 4}},
		}
		if i == 2 {
			c.Offset = 8 * time.Second
		}
		f.Clients, page.Clients = append(f.Clients, c), append(page.Clients, name)
	}
	play := sim.Parallel{Watch: page.Watch}
	page.Play(play.Run(f, 1, 2), 0, func(string) {})
	return page
}

// TestFleetPage: the tables of causes, clients, families and times each have all double holds, and each stage has its own.
func TestFleetPage(t *testing.T) {
	f := played(t)
	sum := f.played.Sum()
	require.Greater(t, sum.Overlaps, int64(20))
	byCause, byFamily, byTime := int64(0), int64(0), 0.0
	for cause := range f.found {
		for _, n := range f.found[cause] {
			byCause += n
		}
		for _, n := range f.times[cause] {
			byTime += n
		}
	}
	for _, n := range f.families {
		byFamily += n
	}
	require.Equal(t, []int64{sum.Overlaps, sum.Overlaps, sum.Overlaps}, []int64{byCause, byFamily, int64(byTime)})
	stages := map[string]int64{}
	for _, r := range f.rows {
		stages[r.Name] = r.Overlaps
		require.Positive(t, r.Acquisitions, r.Name)
	}
	require.Len(t, stages, 5)
	require.Less(t, stages["bridge"], stages["legacy"]/2, "only failovers are left")

	var b bytes.Buffer
	require.NoError(t, f.Write(&b))
	page := b.String()
	require.NotRegexp(t, regexp.MustCompile(`(?i)(src|href)\s*=\s*"?(https?:|//)|@import|fetch\(|XMLHttpRequest`), page, "nothing may be loaded")
	require.NotContains(t, page, "<img", "a client's name is text")
	for _, cause := range []string{"skew", "stale delete", "failover"} {
		require.Contains(t, page, `data-label="cause">`+cause+`</th>`)
	}
	require.Contains(t, page, "lockmigrate replay fleet.json --seed 1 --as story")
	require.Contains(t, page, "Set the clock of java-3")
}

// looksProbe measures a page as a reader sees it.
const looksProbe = `(async function () {
  var all = function (q) { return [].slice.call(document.querySelectorAll(q)); };
  var meet = function (a, b) {
    var r = a.getBoundingClientRect(), s = b.getBoundingClientRect();
    return Math.min(r.right, s.right) - Math.max(r.left, s.left) > 1 && Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top) > 1;
  };
  var cells = all("table.stack tr > *"), overlaps = 0;
  cells.forEach(function (c, i) { cells.slice(i + 1, i + 12).forEach(function (d) { if (meet(c, d)) { overlaps++; } }); });
  var luma = function (color) { var c = color.match(/\d+/g); return +c[0] + +c[1] + +c[2]; };
  var body = getComputedStyle(document.body);
  return {
    Title: document.title, Wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    Cut: all("section, table.stack, table.stack td, table.stack th").filter(function (e) { return e.scrollWidth > e.clientWidth + 1; }).length,
    Overlaps: overlaps, Requests: performance.getEntriesByType("resource").length, Charts: all("#chart canvas").length,
    Lines: all("#chart .u-legend .u-series").length - 1, Dark: luma(body.backgroundColor) < luma(body.color),
    Small: all("p, li, td, th, code").filter(function (e) { return parseFloat(getComputedStyle(e).fontSize) < 11; }).length,
  };
})()`

// TestPagesInABrowser opens the pages of simulate --profile and of forecast on a screen and on a phone, light and dark. With a folder in
// LOCKMIGRATE_SCREENSHOTS the screens are kept there.
func TestPagesInABrowser(t *testing.T) {
	redistest.Need(t, redistest.Browser)
	folder := t.TempDir()
	write := func(name string, write func(b *bytes.Buffer) error) string {
		var b bytes.Buffer
		require.NoError(t, write(&b))
		path := filepath.Join(folder, name+".html")
		require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
		return path
	}
	fleet := played(t)
	coming, err := forecast.Make(measured(), forecast.Options{Span: 24 * time.Hour, Draws: 20, Commands: 20_000, Seed: 1, Failovers: forecast.Failovers{Every: time.Hour, Outage: time.Second, Behind: 2 * time.Second}})
	require.NoError(t, err)
	pages := map[string]string{
		"fleet": write("fleet", func(b *bytes.Buffer) error { return fleet.Write(b) }),
		"forecast": write("forecast", func(b *bytes.Buffer) error {
			return coming.WritePage(b, "fleet.json", "lockmigrate next --namespace NAME --match 'lock:*'")
		}),
	}
	b, err := browser.Start(t.Context(), t.TempDir())
	require.NoError(t, err)
	defer b.Close()
	for name, file := range pages {
		for _, view := range []browser.View{{Width: 1280, Height: 900}, {Width: 1280, Height: 900, Dark: true}, {Width: 390, Height: 844}, {Width: 390, Height: 844, Dark: true}} {
			shown := fmt.Sprintf("%s-%d-%v", name, view.Width, map[bool]string{true: "dark", false: "light"}[view.Dark])
			t.Run(shown, func(t *testing.T) {
				require.NoError(t, b.Open("file://"+file+"?"+shown, view, "document.querySelector('footer')"))
				if keep := os.Getenv("LOCKMIGRATE_SCREENSHOTS"); keep != "" {
					require.NoError(t, b.Picture(filepath.Join(keep, shown+".png"), 0))
				}
				var saw struct {
					Title                                               string
					Wide, Cut, Overlaps, Requests, Charts, Lines, Small int
					Dark                                                bool
				}
				require.NoError(t, b.Eval(looksProbe, &saw))
				require.NotEqual(t, "pwned", saw.Title)
				require.Zero(t, saw.Wide, "the page does not scroll sideways")
				require.Zero(t, saw.Cut, "nothing is cut off")
				require.Zero(t, saw.Overlaps, "no cell covers another")
				require.Zero(t, saw.Requests, "nothing is loaded")
				require.Zero(t, saw.Small, "nothing is too small to read")
				require.Equal(t, view.Dark, saw.Dark)
				if name == "fleet" {
					require.Equal(t, 1, saw.Charts)
					require.Equal(t, len(fleet.chart().Series), saw.Lines, "a line for each cause")
				}
			})
		}
	}
}

// measured is a profile of three old clients on one key; the clock of one is ahead.
func measured() profile.Profile {
	spread := func(lo, hi float64) profile.Spread {
		return profile.Spread{N: 400, Quantiles: []profile.Quantile{{Share: 0, MS: lo}, {Share: 1, MS: hi}}}
	}
	p := profile.Profile{Version: profile.Version, Windows: []profile.Window{{Start: time.Unix(1e9, 0), Seconds: 3600, Masters: 1}}}
	g := profile.Group{Keys: 1}
	for i, name := range []string{"java-1", "java-2", hostileName} {
		p.Clients = append(p.Clients, profile.Client{
			Name: name, Kind: "legacy", Dialect: "jedis-ms", Connections: 1, AtOnce: 1, SkewMS: float64(4000 * i), SkewKnown: true, PollMS: 100,
			Uses: []profile.Use{{Family: "order:#", LeaseMS: 10_000, LeaseFrom: "given", Acquired: 400, Hold: spread(1000, 4000), Wait: spread(0, 3000), Think: spread(0, 8000)}},
		})
		g.Clients, g.Acquired = append(g.Clients, i), append(g.Acquired, 400)
	}
	p.Families = []profile.Family{{Name: "order:#", Keys: 1, Groups: []profile.Group{g}}}
	return p
}
