package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/serve"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hostile = "lock:<img src=x onerror=\"document.title='pwned'\">\u202e"

// example is a state in which everything has something to show.
func example() serve.State {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	f := func(x float64) *float64 { return &x }
	return serve.State{
		Now: now, Server: "redis://example:6379/0", Monitor: "on",
		Namespace: &stages.Document{Namespace: "orders", Stage: "bridge", Epoch: 7, Since: now.Add(-time.Hour),
			Changing: []string{"b-2"}, Members: []stages.MemberDocument{
				{ID: "b-1", Info: stages.Info{Host: "app\"\\\n-1", Build: stages.Build{Program: "example.com/billing", Version: "v1.2.3"}}, Epoch: 7, Stage: "bridge", Seen: 420, Skew: -3},
				{ID: "b-2", Info: stages.Info{Host: "app2"}, Epoch: 6, Stage: "legacy", Seen: 900}}},
		Totals:   map[string]float64{"setnx": 1200, "getset": 3},
		Acquired: map[string]int64{"legacy": 900, "bridge": 100}, Hazards: map[string]int64{"stale-delete": 2}, Overlaps: 1, Monitored: 92.5, Quiet: f(75),
		Clients: []observe.Row{
			{Addr: "10.0.0.1:4000", Host: "10.0.0.1", Name: "billing\"\\\n-7", Kind: observe.Legacy, Dialect: "jedis-ms", Lease: profile.Lease{LeaseMS: 30000}, PollMS: 100, SkewMS: f(-5000), SkewErrorMS: f(2), Acquired: 900, Keys: []string{hostile}},
			{Addr: "10.0.0.2:4000", Kind: observe.Bridge, Dialect: "lockmigrate", Acquired: 100, Keys: []string{"lock:#"}}},
		Events: []observe.EventRow{{At: now, Hazard: "stale-delete", Key: hostile, By: &observe.Who{Addr: "10.0.0.1:4000"}, Victim: &observe.Who{Addr: "10.0.0.2:4000"}, Note: "it had lost the key"}},
		Locks:  serve.Locks{At: now, Summary: census.Summary{Scanned: 1000, ByFormat: map[census.Format]int64{"expiry-ms": 3}, ByState: map[census.State]int64{"ghost": 1, "held": 2}}},
	}
}

// start runs the page until the test ends.
func start(t *testing.T, token string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve.Serve(ctx, listener, serve.Handler(example, token, []string{"127.0.0.1"})) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
		http.DefaultClient.CloseIdleConnections()
	})
	return "http://" + listener.Addr().String()
}

func get(t *testing.T, url string, change func(*http.Request)) (int, string, http.Header) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	if change != nil {
		change(request)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Timeout: 5 * time.Second}
	reply, err := client.Do(request)
	require.NoError(t, err)
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	client.CloseIdleConnections()
	return reply.StatusCode, string(body), reply.Header
}

func TestHandler(t *testing.T) {
	url := start(t, "")
	for path, want := range map[string]string{"/": "<title>lockmigrate</title>", "/page.css": "prefers-color-scheme", "/style.css": ".tiles", "/uplot/uPlot.iife.min.js": "var uPlot", "/charts.js": "new uPlot", "/app.js": "textContent", "/api/state": `"stage":"bridge"`, "/metrics": `lockmigrate_stage{namespace="orders",stage="bridge"} 1`} {
		code, body, head := get(t, url+path, nil)
		assert.Equal(t, 200, code, path)
		assert.Contains(t, body, want, path)
		assert.Contains(t, head.Get("Content-Security-Policy"), "default-src 'none'")
	}
	code, _, _ := get(t, url+"/nothing", nil)
	assert.Equal(t, 404, code)
	code, _, _ = get(t, url, func(r *http.Request) { r.Host = "evil.example" })
	assert.Equal(t, http.StatusMisdirectedRequest, code, "DNS rebinding")
	code, _, _ = get(t, url, func(r *http.Request) { r.Method = http.MethodPost })
	assert.Equal(t, http.StatusMethodNotAllowed, code)
	code, body, _ := get(t, url+"/metrics", func(r *http.Request) { r.Method = http.MethodHead })
	assert.Equal(t, 200, code)
	assert.Empty(t, body)
	_, metrics, _ := get(t, url+"/metrics", nil)
	assert.Contains(t, metrics, "lockmigrate_overlaps_total 1\n")
	assert.Contains(t, metrics, "lockmigrate_monitor_seconds_total 92.5\n")
	assert.Contains(t, metrics, "lockmigrate_quiet_seconds 75\n")
	assert.Contains(t, metrics, `host="app\"\\\n-1",namespace="orders"} 0.42`, "text of others is escaped")
	assert.Contains(t, metrics, "lockmigrate_client_skew_seconds{dialect=\"jedis-ms\",host=\"10.0.0.1\"} -5\n")
	assert.NotContains(t, metrics, ":4000", "a port would make a new series with every connection")
	assert.Contains(t, metrics, "lockmigrate_members_behind{namespace=\"orders\"} 1\n")
}

func TestToken(t *testing.T) {
	url := start(t, "s3cret")
	for _, path := range []string{"/", "/api/state", "/metrics", "/app.js"} {
		code, body, _ := get(t, url+path, nil)
		assert.Equal(t, 401, code, path)
		assert.NotContains(t, body, "bridge")
	}
	code, _, _ := get(t, url+"/?token=wrong", nil)
	assert.Equal(t, 401, code)
	code, _, _ = get(t, url+"/metrics", func(r *http.Request) { r.Header.Set("Authorization", "Bearer s3cret") })
	assert.Equal(t, 200, code)
	code, _, head := get(t, url+"/?token=s3cret", nil)
	assert.Equal(t, http.StatusSeeOther, code)
	assert.Equal(t, "/", head.Get("Location"), "the token leaves the address")
	cookie := head.Get("Set-Cookie")
	assert.Contains(t, cookie, "HttpOnly")
	code, _, _ = get(t, url+"/api/state", func(r *http.Request) { r.Header.Set("Cookie", strings.Split(cookie, ";")[0]) })
	assert.Equal(t, 200, code)
}

// TestBrowser opens the page on a screen and on a phone, light and dark: everything is there, nothing is cut, and text
// of others stays text. With a folder in LOCKMIGRATE_SCREENSHOTS the screens are kept there, to be looked at.
func TestBrowser(t *testing.T) {
	url := start(t, "")
	b := redistest.NewChromium(t)
	for name, view := range map[string]redistest.View{
		"page-1280-light": {Width: 1280, Height: 1500}, "page-1280-dark": {Width: 1280, Height: 1500, Dark: true},
		"page-390-light": {Width: 390, Height: 844}, "page-390-dark": {Width: 390, Height: 844, Dark: true},
	} {
		t.Run(name, func(t *testing.T) {
			b.Open(t, url, view, "document.getElementById('fresh').textContent.startsWith('live ') && document.querySelector('.uplot')")
			var saw struct {
				Text, Title    string
				Images, Charts int
				Wide           int      // how far the page scrolls sideways
				Cut            []string // tables that do
				Loaded         []string
			}
			b.Eval(t, `({
				Text: document.body.innerText, Title: document.title, Images: document.images.length, Charts: document.querySelectorAll(".uplot canvas").length,
				Wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
				Cut: [...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.firstElementChild.id),
				Loaded: performance.getEntriesByType("resource").map((r) => r.name).filter((n) => !n.startsWith(location.origin)),
			})`, &saw)
			for _, want := range []string{"orders", "b-2 is still on the previous epoch", "jedis-ms", "-5.00 s ±2.0 ms", "stale-delete", "live ", "billing@v1.2.3", "nobody has acquired for 75 s", "UTC", `\u202e`} {
				assert.Contains(t, saw.Text, want)
			}
			var moment struct{ Commands, Kinds map[string]float64 }
			b.Eval(t, `(remember({ now: "2026-11-20T12:00:10Z", totals: { setnx: 1240, getset: 3 }, acquired: { legacy: 920, bridge: 100 }, monitored_seconds: 97.5 }), moments.at(-1))`, &moment)
			assert.Equal(t, map[string]float64{"setnx": 4, "getset": 0}, moment.Commands, "a second, since the page was opened")
			assert.Equal(t, map[string]float64{"legacy": 4, "bridge": 0}, moment.Kinds, "a second of the 5 s that MONITOR ran")
			assert.Zero(t, saw.Images, "a key is text")
			assert.Equal(t, "lockmigrate", saw.Title)
			assert.Equal(t, 2, saw.Charts)
			assert.Zero(t, saw.Wide)
			assert.Empty(t, saw.Cut, "tables that are cut")
			assert.Empty(t, saw.Loaded, "nothing comes from elsewhere")
			if folder := os.Getenv("LOCKMIGRATE_SCREENSHOTS"); folder != "" {
				b.Picture(t, filepath.Join(folder, name+".png"), 0)
			}
		})
	}
}

// TestCollector runs everything on a real server with one client that locks.
func TestCollector(t *testing.T) {
	s := redistest.Real(t)
	s.Do("SET", "lock:dead", fmt.Sprint(time.Now().Add(-48*time.Hour).UnixMilli()))
	c, stop := collect(t, s.URL(), serve.Options{Burst: time.Minute, Every: time.Minute, CensusEvery: time.Minute, Match: []string{"lock:*"}})
	conn := s.Conn()
	assert.Eventually(t, func() bool {
		_, _ = conn.Do("SETNX", "lock:a", fmt.Sprint(time.Now().Add(30*time.Second).UnixMilli()+1))
		_, _ = conn.Do("DEL", "lock:a")
		state := c.State()
		return state.Acquired["legacy"] > 3 && state.Locks.ByState["ghost"] == 1 && state.Totals["setnx"] > 3 && len(state.Clients) == 1 && state.Monitor == "on"
	}, time.Minute, 20*time.Millisecond)
	state := c.State()
	assert.Empty(t, state.Error)
	require.NotEmpty(t, state.Clients)
	assert.Equal(t, "jedis-ms", state.Clients[0].Dialect)
	s.Kill()
	assert.Eventually(t, func() bool { return c.State().Error != "" }, time.Minute, 20*time.Millisecond, "a server that is gone is said to be")
	began := time.Now()
	stop()
	assert.Less(t, time.Since(began), time.Second)
}

// TestAHostOfACluster locks keys of two masters from one host: with rows by host its acquisitions are one row, of both.
func TestAHostOfACluster(t *testing.T) {
	cluster := redistest.NewCluster(t, 2, 0)
	c, _ := collect(t, cluster.URL(), serve.Options{Group: observe.ByHost, Burst: time.Minute, Every: time.Minute})
	redistest.Await(t, "MONITOR on every master", func() bool { return c.State().Monitor == "on" })
	const keys = 40
	for i := range keys {
		key := fmt.Sprintf("lock:%d", i)
		for _, s := range cluster.Masters {
			_, _ = s.Try("SETNX", key, fmt.Sprint(time.Now().Add(30*time.Second).UnixMilli()+1)) // the other one says MOVED
		}
	}
	redistest.Await(t, "one row with all acquisitions", func() bool {
		rows := c.State().Clients
		return len(rows) == 1 && rows[0].Acquired == keys
	})
}

// collect runs a collector on a server until the test ends.
func collect(t *testing.T, url string, opts serve.Options) (c *serve.Collector, stop func()) {
	t.Helper()
	end, err := endpoint.Parse(url, endpoint.TLSFiles{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	opts.Look = 100 * time.Millisecond
	c = serve.NewCollector(end, opts)
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return c, stop
}

// TestCountsWhileAMasterIsDown: a denied command on another master is counted, as it happens, and nothing that ran before or
// after a restart is lost.
func TestCountsWhileAMasterIsDown(t *testing.T) {
	cluster := redistest.NewCluster(t, 2, 0)
	there, back := cluster.Masters[0], cluster.Masters[1]
	c, _ := collect(t, cluster.URL(), serve.Options{})
	counted := func(n float64) {
		t.Helper()
		redistest.Await(t, fmt.Sprint(n, " calls"), func() bool {
			calls, read := c.State().Totals["setnx"]
			return read && calls == n
		})
	}
	setnx := func(s *redistest.Server, times int) {
		for range times { // to the node that has the slot
			_, _ = s.Try("EVAL", "return redis.pcall('SETNX', KEYS[1], 1)", 1, map[*redistest.Server]string{there: "{b}", back: "{a}"}[s])
		}
	}
	counted(0)
	setnx(there, 2)
	setnx(back, 3)
	counted(5)
	back.Kill()
	redistest.Await(t, "the page to say so", func() bool { return strings.Contains(c.State().Error, back.Addr) })
	there.Do("CONFIG", "SET", "cluster-require-full-coverage", "no")
	redistest.Await(t, "the other to serve its slots", func() bool { _, err := there.Try("GET", "{b}"); return err == nil })
	setnx(there, 2)
	counted(7)
	assert.NotEmpty(t, c.State().Error)
	back.Start()
	cluster.AwaitOK()
	redistest.Await(t, "all to be well", func() bool { return c.State().Error == "" })
	setnx(back, 1)
	counted(8)
}

// TestNamespaceThatCannotBeRead: the page says so for as long as that is so, and shows no stage that may have changed.
func TestNamespaceThatCannotBeRead(t *testing.T) {
	s := redistest.Real(t)
	name, err := redistest.InStage(s.Pool(), stages.Bridge, "", time.Second)
	require.NoError(t, err)
	s.Grant("few", "~*", "&*", "+@all")
	c, _ := collect(t, s.URLOf("few"), serve.Options{Namespace: name})
	redistest.Await(t, "the stage", func() bool { return c.State().Namespace != nil })
	document, err := json.Marshal(c.State())
	require.NoError(t, err)
	assert.NotContains(t, string(document), "blocked_by", "the way to the next stage is not looked at")
	s.Do("ACL", "SETUSER", "few", "resetkeys", "~lock:*")
	redistest.Await(t, "the page to say so", func() bool { return c.State().Error != "" })
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		state := c.State()
		require.Contains(t, state.Error, "NOPERM", "it comes and goes: no alert would ever fire")
		require.Nil(t, state.Namespace)
	}
	s.Do("ACL", "SETUSER", "few", "allkeys")
	redistest.Await(t, "the stage", func() bool { st := c.State(); return st.Namespace != nil && st.Error == "" })
	s.Do("DEL", "lockmigrate:{"+name+"}:stage")
	redistest.Await(t, "the namespace to go", func() bool { st := c.State(); return st.Namespace == nil && st.Error == "" })
}

// TestMetricsSayWhatWasLookedAt wants no zero where nobody has looked: no overlaps without MONITOR, no locks
// without a census, and the refusal of a census said.
func TestMetricsSayWhatWasLookedAt(t *testing.T) {
	s := redistest.Real(t)
	s.Do("SET", "lock:a", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30")
	s.Grant("few", "~other:*", "&*", "+@all", "-monitor")
	metrics := func(url string, burst time.Duration, until func(serve.State) bool) (string, serve.State) {
		c, stop := collect(t, url, serve.Options{Burst: burst, Every: burst, CensusEvery: 50 * time.Millisecond})
		redistest.Await(t, "the page", func() bool { return until(c.State()) })
		state := c.State()
		stop()
		answer := httptest.NewRecorder()
		serve.Handler(func() serve.State { return state }, "", []string{"localhost"}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", nil))
		return answer.Body.String(), state
	}
	looked := func(st serve.State) bool { return !st.Locks.At.IsZero() }
	text, _ := metrics(s.URL(), 0, looked)
	assert.NotContains(t, text, "overlaps_total")
	assert.Contains(t, text, "lockmigrate_monitor_running 0\n")
	assert.Contains(t, text, "lockmigrate_monitor_seconds_total 0\n")
	text, _ = metrics(s.URL(), time.Minute, func(st serve.State) bool { return st.Monitored > 0 && looked(st) })
	assert.Contains(t, text, "lockmigrate_overlaps_total 0\n")
	assert.Contains(t, text, "lockmigrate_monitor_running 1\n")
	few := s.URLOf("few")
	text, _ = metrics(few, time.Minute, func(st serve.State) bool { return strings.HasPrefix(st.Monitor, "stopped") && looked(st) })
	assert.NotContains(t, text, "overlaps_total")
	assert.Contains(t, text, "lockmigrate_keys_unread 1\n")
	s.Do("ACL", "SETUSER", "few", "-scan")
	text, state := metrics(few, 0, func(st serve.State) bool { return st.Locks.Error != "" })
	assert.Contains(t, state.Locks.Error, "scan")
	assert.NotContains(t, text, "lockmigrate_locks")
}
