package sidecar

import (
	"cmp"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
)

// counts are what happened since the start.
type counts struct {
	commands                                                                                            map[string]*atomic.Int64
	granted, late, refused, over, scripts, overran, ended, displaced, repaired, orphaned, twins, unread atomic.Int64
}

// countedAs is what a command that is replaced is counted as; all that are not here as others.
var countedAs = map[string]string{
	"SETNX": "SETNX", "SET": "SET", "GET": "GET", "GETSET": "GETSET", "DEL": "DEL", "UNLINK": "DEL",
	"EXPIRE": "EXPIRE", "PEXPIRE": "EXPIRE", "EXPIREAT": "EXPIRE", "PEXPIREAT": "EXPIRE",
}

const uncounted = "others"

func newCounts() map[string]*atomic.Int64 {
	all := map[string]*atomic.Int64{uncounted: {}}
	for _, as := range countedAs {
		all[as] = &atomic.Int64{}
	}
	return all
}

// translated is the count of the commands of a name that were replaced.
func (c *counts) translated(name string) *atomic.Int64 {
	return c.commands[cmp.Or(countedAs[name], uncounted)]
}

// CollectNone sends the metrics before there is a Sidecar: there is no member.
func CollectNone(c chan<- prometheus.Metric) { collectMember(c, 0) }

func collectMember(c chan<- prometheus.Metric, lasts float64) {
	c <- proxy.Metric("member", "1 while the lease of this member lasts; at 0 every lock is refused.", lasts, nil)
}

// Collect sends the metrics of the member, and of its clients.
func (s *Server) Collect(c chan<- prometheus.Metric) {
	s.Server.Collect(c)
	s.member.Collect(c)
}

// Collect sends the counts of the translation, and what is to tell of the member.
func (s *Sidecar) Collect(out chan<- prometheus.Metric) {
	c := &s.counts
	for command, n := range c.commands {
		out <- proxy.Metric("translated_total", "commands on lock keys that were replaced", float64(n.Load()), prometheus.Labels{"command": command})
	}
	for _, t := range []struct {
		name, help string
		n          *atomic.Int64
	}{
		{"granted", "locks granted to the service, counted at their DEL or the end of their lease", &c.granted},
		{"late", "attempts refused because the lease of this member is over", &c.late},
		{"refused", "commands refused: they would damage a lock", &c.refused},
		{"over", "attempts with an expiry that is over by this host's clock: see whether client and sidecar are on one host", &c.over},
		{"unread", "attempts with a text that is no time of the listener's dialect: their locks have no lease of the service's", &c.unread},
		{"scripts", "scripts of the service on lock keys", &c.scripts},
		{"overran", "DELs after the end of their lease", &c.overran},
		{"ended", "leases that ended without a DEL", &c.ended},
		{"orphaned", "locks without a time whose holder may have crashed: all connections from when they were taken have ended", &c.orphaned},
		{"displaced", "locks in use on whose key another value stood", &c.displaced},
		{"twins", "times that another living process of the same name was heard", &c.twins},
		{"repaired", "locks set again after a DEL that was not the holder's", &c.repaired},
	} {
		out <- proxy.Metric(t.name+"_total", t.help, float64(t.n.Load()), nil)
	}
	stage, epoch, joined := s.Stage()
	lasts := 0.0
	if joined {
		lasts = 1
	}
	collectMember(out, lasts)
	out <- proxy.Metric("unseen_keys", "Keys of locks that this sidecar's user may not look at: they count as held, and stages wait for them.", float64(s.Unseen()), nil)
	out <- proxy.Metric("epoch", "The namespace's epoch.", float64(epoch), nil)
	out <- proxy.Metric("stage", "1 for the stage that the service's commands become.", 1, prometheus.Labels{"stage": fmt.Sprint(stage)})
}
