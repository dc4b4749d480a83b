package endpoint

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Info asks for INFO, or a section of it.
func Info(ctx context.Context, conn redis.Conn, section ...any) (map[string]string, error) {
	text, err := redis.String(redis.DoContext(conn, ctx, "INFO", section...))
	return InfoOf(text), err
}

// InfoOf reads a reply of INFO: the fields by name.
func InfoOf(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}

// Calls are the counts of one command.
type Calls struct {
	Calls, Rejected, Failed int64
	Counts                  bool // the server counts the rejected calls: from 6.2 on
}

// CallsOf reads calls=1,usec=...,rejected_calls=0,failed_calls=0.
func CallsOf(value string) (c Calls) {
	for pair := range strings.SplitSeq(value, ",") {
		name, number, _ := strings.Cut(pair, "=")
		n, _ := strconv.ParseInt(number, 10, 64)
		switch name {
		case "calls":
			c.Calls = n
		case "rejected_calls":
			c.Rejected, c.Counts = n, true
		case "failed_calls":
			c.Failed = n
		}
	}
	return c
}

// MainCPU returns the processor time of the server's main thread in seconds, from INFO cpu; 0 where it does not tell.
func MainCPU(info map[string]string) float64 {
	for _, suffix := range []string{"_main_thread", ""} { // the first from 6.2 on
		user, _ := strconv.ParseFloat(info["used_cpu_user"+suffix], 64)
		system, _ := strconv.ParseFloat(info["used_cpu_sys"+suffix], 64)
		if used := user + system; used > 0 {
			return used
		}
	}
	return 0
}

// Clients asks for CLIENT LIST: for each connection its fields by name.
func Clients(ctx context.Context, conn redis.Conn, filter ...any) ([]map[string]string, error) {
	list, err := redis.String(redis.DoContext(conn, ctx, "CLIENT", append([]any{"LIST"}, filter...)...))
	var all []map[string]string
	for line := range strings.Lines(list) {
		all = append(all, Fields(line))
	}
	return all, err
}

// IsNode tells that a line of CLIENT LIST is a node's connection and no client's: the master of a replica, or a node that gives this one slots (Valkey 9,
// Redis 8.4). What it sends has run there.
func IsNode(client map[string]string) bool { return strings.ContainsAny(client["flags"], "Mio") }

// Fields reads words of the form name=value.
func Fields(line string) map[string]string {
	fields := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(word, "=")
		fields[name] = value
	}
	return fields
}

// Clocks is this host's clock compared with a server's.
type Clocks struct {
	Ahead time.Duration // this host's clock less the server's
	Trip  time.Duration // the round trip that it was measured by: Ahead is right within half of it
}

// CompareClocks asks the server for its time so many times, and believes the fastest answer: the server read
// its clock within it. Now is this host's clock, nil for the usual one.
func CompareClocks(ctx context.Context, conn redis.Conn, times int, now func() time.Time) (Clocks, error) {
	if now == nil {
		now = time.Now
	}
	var best Clocks
	for i := range max(times, 1) {
		before, began := now(), time.Now()
		parts, err := redis.Int64s(redis.DoContext(conn, ctx, "TIME"))
		trip := time.Since(began)
		if err == nil && len(parts) != 2 {
			err = fmt.Errorf("TIME answers %d numbers", len(parts))
		}
		if err != nil {
			return Clocks{}, err
		}
		if i == 0 || trip < best.Trip {
			best = Clocks{before.Add(trip / 2).Sub(time.Unix(parts[0], parts[1]*1000)), trip}
		}
	}
	return best, nil
}
