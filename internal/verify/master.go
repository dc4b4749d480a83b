package verify

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/fence"
)

// master is one server over the window. Its counters are read again and again: a reset or restart between
// two looks shows as a count that went back.
type master struct {
	end  *endpoint.Endpoint
	addr string
	conn redis.Conn
	log  *fence.Log

	first, last reading
	holes       []string // what broke the evidence
	logFailed   error
	hits        []fence.Hit
}

// reading is one look at the counters.
type reading struct {
	runID    string
	version  string
	role     string
	commands int64 // of any kind, since the start or RESETSTAT
	resets   int64 // CONFIG RESETSTAT since the last
	setnx    calls
	getset   calls
}

// calls counts one command.
type calls struct{ calls, rejected, failed int64 }

func (c calls) minus(d calls) calls {
	return calls{c.calls - d.calls, c.rejected - d.rejected, c.failed - d.failed}
}

func newMaster(ctx context.Context, end *endpoint.Endpoint, addr string) (*master, error) {
	conn, err := end.DialAddr(ctx, addr)
	if err != nil {
		return nil, err
	}
	m := &master{end: end, addr: addr, conn: conn, log: &fence.Log{Server: addr}}
	if m.first, err = m.read(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	m.last = m.first
	if m.first.role == "slave" {
		m.hole("it is a replica: nobody writes there")
	}
	_, m.logFailed = m.log.Poll(ctx, conn)
	return m, nil
}

// read looks at INFO.
func (m *master) read(ctx context.Context) (reading, error) {
	var r reading
	text, err := redis.String(redis.DoContext(m.conn, ctx, "INFO", "everything"))
	if err != nil {
		return r, endpoint.Explain(err)
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "run_id":
			r.runID = value
		case "redis_version":
			r.version = value
		case "role":
			r.role = value
		case "total_commands_processed":
			r.commands, _ = strconv.ParseInt(value, 10, 64)
		case "cmdstat_setnx":
			r.setnx = callsOf(value)
		case "cmdstat_getset":
			r.getset = callsOf(value)
		case "cmdstat_config|resetstat":
			r.resets = callsOf(value).calls
		}
	}
	if r.runID == "" || r.commands == 0 {
		return r, &endpoint.Error{What: "INFO of " + m.addr + " does not tell its run id or its counters", Advice: "grant +info; a proxy in between makes the counters worthless"}
	}
	return r, nil
}

// callsOf reads calls=1,usec=...,rejected_calls=0,failed_calls=0.
func callsOf(value string) calls {
	var c calls
	for pair := range strings.SplitSeq(value, ",") {
		name, number, _ := strings.Cut(pair, "=")
		n, _ := strconv.ParseInt(number, 10, 64)
		switch name {
		case "calls":
			c.calls = n
		case "rejected_calls":
			c.rejected = n
		case "failed_calls":
			c.failed = n
		}
	}
	return c
}

func (m *master) hole(format string, args ...any) {
	if len(m.holes) < 10 {
		m.holes = append(m.holes, m.addr+": "+fmt.Sprintf(format, args...))
	}
}

// look takes one more reading and one more poll of ACL LOG.
func (m *master) look(ctx context.Context) {
	now, err := m.read(ctx)
	if err != nil && ctx.Err() == nil {
		m.reconnect(ctx, err)
		now, err = m.read(ctx)
	}
	if err != nil {
		if ctx.Err() == nil {
			m.hole("it could not be read: %v", err)
		}
		return
	}
	switch {
	case now.runID != m.first.runID:
		m.hole("it restarted or was replaced: another run id")
	case now.resets != m.last.resets, now.commands < m.last.commands, now.setnx.calls < m.last.setnx.calls, now.getset.calls < m.last.getset.calls:
		m.hole("its counters were reset (CONFIG RESETSTAT)")
	case now.role != m.first.role:
		m.hole("its role changed to %s", now.role)
	}
	m.last = now
	m.poll(ctx)
}

func (m *master) poll(ctx context.Context) {
	if m.logFailed != nil {
		return
	}
	hits, err := m.log.Poll(ctx, m.conn)
	if err == nil && len(m.hits) < 1000 {
		m.hits = append(m.hits, hits...)
	}
}

func (m *master) reconnect(ctx context.Context, why error) {
	_ = m.conn.Close()
	if conn, err := m.end.DialAddr(ctx, m.addr); err == nil {
		m.conn = conn
	} else {
		m.hole("the connection broke: %v", why)
	}
}

// server sums a master up. A count that went back, or a hole, leaves no difference to speak of; what was
// counted is never taken back.
func (m *master) server() Server {
	setnx, getset := m.last.setnx.minus(m.first.setnx), m.last.getset.minus(m.first.getset)
	return Server{
		Addr: m.addr, RunID: m.first.runID, Version: m.first.version,
		SetNX: max(0, setnx.calls), GetSet: max(0, getset.calls), Rejected: max(0, setnx.rejected) + max(0, getset.rejected),
	}
}
