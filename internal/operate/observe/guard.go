package observe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// guard looks after the server while MONITOR runs: a monitor can halve a busy server's throughput, and one
// that reads too slowly makes the server hold its output.
type guard struct {
	addr   string // of its connection, as the server sees it
	field  string // of CLIENT LIST that the monitor is known by, empty if there is none
	value  string // in it
	conn   redis.Conn
	limits Limits

	mu      sync.Mutex
	cost    Cost       // for the server
	started cpuReading // when the watch began
	last    cpuReading
	hot     int // looks in a row that found too much load

	failovers *profile.Failovers // that the server remembers
}

// mostHeld is how many bytes the server may have to hold for us.
const mostHeld = 8 << 20

type cpuReading struct {
	at  time.Time
	cpu float64 // seconds
}

func newGuard(ctx context.Context, end *endpoint.Endpoint, addr string, limits Limits) (*guard, error) {
	conn, own, err := beside(ctx, end, addr)
	if err != nil {
		return nil, err
	}
	g := &guard{conn: conn, addr: own, limits: limits, cost: Cost{BufferUnknown: "nobody has looked yet"}}
	if err := g.baseline(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return g, nil
}

// baseline measures the server's load before MONITOR begins, over a quarter of a second.
func (g *guard) baseline(ctx context.Context) error {
	g.remember(ctx)
	g.load(ctx)
	if err := lifetime.Sleep(ctx, 250*time.Millisecond); err != nil { // a load is a difference over time
		return err
	}
	before := g.load(ctx)
	g.cost.CPUBefore, g.started = before, g.last
	if before > g.limits.Load {
		return &Stopped{fmt.Sprintf("the server already uses %.0f %% of a core, and MONITOR would add to it", 100*before)}
	}
	return nil
}

// remember asks the server whether it has taken a master's place. One that has no replicas may have forgotten.
func (g *guard) remember(ctx context.Context) {
	is, err := endpoint.Info(ctx, g.conn)
	up, noTime := strconv.ParseInt(is["uptime_in_seconds"], 10, 64)
	before, known := is["master_replid2"]
	switch promoted := strings.Trim(before, "0") != ""; {
	case err != nil || noTime != nil || !known || is["role"] != "master":
	case promoted:
		g.failovers = &profile.Failovers{Seen: 1, Seconds: float64(max(up, 1))}
	case is["connected_slaves"] != "0":
		g.failovers = &profile.Failovers{Seconds: float64(up)}
	}
}

func share(from, to cpuReading) float64 {
	if d := to.at.Sub(from.at).Seconds(); d > 0 && !from.at.IsZero() {
		return max(0, (to.cpu-from.cpu)/d)
	}
	return 0
}

func (g *guard) close() { _ = g.conn.Close() }

// look returns why the watch has to end, empty if it need not.
func (g *guard) look(ctx context.Context) string {
	var list []map[string]string
	err := errors.New("the monitor has no id")
	if g.field == "id" {
		list, err = endpoint.Clients(ctx, g.conn, "ID", g.value)
	}
	if err != nil && ctx.Err() == nil {
		list, err = endpoint.Clients(ctx, g.conn) // before 6.2
	}
	load := g.load(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	found := false
	for _, f := range list {
		if g.field != "" && f[g.field] == g.value {
			held, _ := strconv.ParseInt(f["omem"], 10, 64)
			g.cost.BufferPeak, found = max(g.cost.BufferPeak, held), true
		}
	}
	switch {
	case found:
		g.cost.BufferUnknown = ""
	case ctx.Err() != nil: // the end of the window, not the server's word
	case err != nil:
		g.cost.BufferUnknown = "CLIENT LIST: " + err.Error()
	default:
		g.cost.BufferUnknown = "CLIENT LIST does not show the monitor"
	}
	if peak := g.cost.BufferPeak; peak > mostHeld {
		return fmt.Sprintf("the server had to hold %d MiB of output for this watch", peak>>20)
	}
	g.cost.CPUDuring = share(g.started, g.last)
	g.hot++
	if load <= g.limits.Load {
		g.hot = 0
	}
	if g.hot >= 3 {
		return fmt.Sprintf("the server uses %.0f %% of a core", 100*load)
	}
	return ""
}

// load returns the share of a core that the server's main thread has used since the look before; 0 where that is not known.
func (g *guard) load(ctx context.Context) float64 {
	info, err := endpoint.Info(ctx, g.conn, "cpu")
	now := cpuReading{time.Now(), endpoint.MainCPU(info)}
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.last
	switch {
	case err == nil && now.cpu > 0:
		g.last = now
	case ctx.Err() != nil: // the end of the window, not the server's word
	case err != nil:
		g.cost.LoadUnknown = "INFO: " + err.Error()
	default:
		g.cost.LoadUnknown = "INFO tells no processor time"
	}
	return share(before, g.last)
}

// peers asks which clients are connected; nodes are none.
func (g *guard) peers(ctx context.Context) map[string]Peer {
	list, err := endpoint.Clients(ctx, g.conn)
	if err != nil {
		return nil
	}
	all := map[string]Peer{}
	for _, f := range list {
		if endpoint.IsNode(f) {
			continue
		}
		lib := f["lib-name"]
		if v := f["lib-ver"]; v != "" {
			lib += " " + v
		}
		all[f["addr"]] = Peer{Name: f["name"], User: f["user"], Lib: lib}
	}
	return all
}

// costs is what the watch did cost the server, as far as that is known.
func (g *guard) costs() Cost {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cost
}
