package endpoint

import (
	"context"
	"strconv"
	"strings"

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

// Fields reads words of the form name=value.
func Fields(line string) map[string]string {
	fields := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(word, "=")
		fields[name] = value
	}
	return fields
}
