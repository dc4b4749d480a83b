package stages

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// Halves are the two locks of a handover: see package handover. Two members whose Old are two different servers do not exclude each other.
type Halves struct {
	Old Half `json:"old"`
	New Half `json:"new"`
}

// Half is one of them: the random mark on its server, where the lock is of this module; else its name.
type Half struct {
	Name string `json:"name,omitempty"`
	Mark string `json:"mark,omitempty"`
}

func (h Half) zero() bool { return h == Half{} }

// String is the half for people.
func (h Half) String() string {
	switch {
	case h.Mark == "":
		return fmt.Sprintf("%q", h.Name)
	case h.Name == "":
		return "the server marked " + h.Mark
	}
	return fmt.Sprintf("%q, the server marked %s", h.Name, h.Mark)
}

// Differs says in what a member's halves are not those of the record. A mark decides, where the record has one; else the name.
func (h Halves) Differs(ours Halves) error {
	for _, half := range []struct {
		field     string
		its, ours Half
	}{{"Old", h.Old, ours.Old}, {"New", h.New, ours.New}} {
		same := half.its.Mark == half.ours.Mark
		if half.its.Mark == "" {
			same = half.its.Name == half.ours.Name
		}
		if !same {
			return fmt.Errorf("%s of this process is %v, the record's is %v: members of two minds do not exclude each other", half.field, half.ours, half.its)
		}
	}
	return nil
}

// MarkKey returns the name of the key with the random mark of a handover's server.
func MarkKey(namespace string) string { return "lockmigrate:{" + namespace + "}:mark" }

// ReadMark returns the mark on a server.
func ReadMark(ctx context.Context, pool lockmigrate.Pool, namespace string, timeout time.Duration) (string, error) {
	return mark(ctx, pool, timeout, "GET", MarkKey(namespace))
}

// WriteMark puts a mark on a server, unless it has one, and returns the one that it has.
func WriteMark(ctx context.Context, pool lockmigrate.Pool, namespace string, timeout time.Duration) (string, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	if _, err := mark(ctx, pool, timeout, "SET", MarkKey(namespace), hex.EncodeToString(b[:]), "NX"); err != nil && !errors.Is(err, redis.ErrNil) {
		return "", err
	}
	return ReadMark(ctx, pool, namespace, timeout)
}

// Marked returns halves by the marks of their servers. It writes a mark where there is none; a half without a pool stays empty: it goes by a name.
func Marked(ctx context.Context, namespace string, timeout time.Duration, old, new lockmigrate.Pool) (h Halves, err error) {
	if old != nil {
		h.Old.Mark, err = WriteMark(ctx, old, namespace, timeout)
	}
	if new != nil && err == nil {
		h.New.Mark, err = WriteMark(ctx, new, namespace, timeout)
	}
	return h, err
}

func mark(ctx context.Context, pool lockmigrate.Pool, timeout time.Duration, command string, args ...any) (string, error) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	text, err := redis.String(topology.Over(bounded, pool, func(conn redis.Conn) (any, error) {
		return redis.DoWithTimeout(conn, timeout, command, args...)
	}))
	if errors.Is(err, redis.ErrNil) && command == "GET" {
		return "", nil
	}
	return text, err
}
