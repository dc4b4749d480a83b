package sidecar

import "sync/atomic"

// counts are what happened since the start.
type counts struct {
	setnx, set, get, getset, del, expire, others                                                        atomic.Int64
	granted, late, refused, over, scripts, overran, ended, displaced, repaired, orphaned, twins, unread atomic.Int64
}

func (c *counts) translated(name string) *atomic.Int64 {
	switch name {
	case "SETNX":
		return &c.setnx
	case "SET":
		return &c.set
	case "GET":
		return &c.get
	case "GETSET":
		return &c.getset
	case "DEL", "UNLINK":
		return &c.del
	case "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT":
		return &c.expire
	default:
		return &c.others
	}
}

// Count is one counter, as a Prometheus metric.
type Count struct {
	Name  string // lockmigrate_sidecar_...
	Help  string
	Label string // command="SETNX"; empty for none
	Value int64
}

// Counts returns the counters. Those of one name stand together.
func (s *Sidecar) Counts() []Count {
	c := &s.counts
	var all []Count
	for _, t := range []struct {
		command string
		n       *atomic.Int64
	}{{"SETNX", &c.setnx}, {"SET", &c.set}, {"GET", &c.get}, {"GETSET", &c.getset}, {"DEL", &c.del}, {"EXPIRE", &c.expire}, {"others", &c.others}} {
		all = append(all, Count{"lockmigrate_sidecar_translated_total", "commands on lock keys that were replaced", `command="` + t.command + `"`, t.n.Load()})
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
		all = append(all, Count{"lockmigrate_sidecar_" + t.name + "_total", t.help, "", t.n.Load()})
	}
	return all
}
