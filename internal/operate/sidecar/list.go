package sidecar

import (
	"context"
	"maps"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// The list of the keys that the service may hold is on the server too: a hash from a key to an entry. So the process that follows looks after
// them from its first moment, whether this one ended in order or is killed. It has a TTL. While one process replaces another both change
// the list, and read it again.

// The entries.
const (
	timed     = "timed"     // the client wrote an expiry
	connected = "connected" // it wrote none
	parted    = "parted"    // the same, and the service has ended all connections that were open when the lock was taken
)

// listPause is the pause between two changes of the list. What is taken within it and a round trip before a kill is not on the list.
const listPause = 5 * time.Millisecond

// ListKey returns the name of the list of a sidecar.
func ListKey(namespace, name string) string {
	return "lockmigrate:{" + namespace + "}:sidecar:" + name
}

// note puts a key on the list, or changes its entry. The caller has k.mu.
func (k *keys) note(s *Sidecar, key string, w *watched) {
	entry := timed
	switch {
	case w.endless && w.gone.IsZero():
		entry = connected
	case w.endless:
		entry = parted
	}
	if w.entry != entry {
		w.entry = entry
		k.change(s, key, entry)
	}
}

// forget drops a key that holds nothing of ours. The caller has k.mu.
func (k *keys) forget(s *Sidecar, key string, w *watched) {
	delete(k.all, key)
	if w.entry != "" {
		k.change(s, key, "")
	}
}

func (k *keys) change(s *Sidecar, key, entry string) {
	k.changes[key] = entry
	poke(s.listing)
}

// adopt takes keys from the list. What has stood there before this process began, or has been taken by another one, is looked at at once.
// What that one has taken off the list by mistake is put on it again.
func (k *keys) adopt(s *Sidecar, entries map[string]string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, w := range k.all {
		if w.entry != "" && entries[key] == "" {
			k.change(s, key, w.entry)
		}
	}
	for key, entry := range entries {
		w := k.all[key]
		if w == nil {
			w = &watched{entry: entry, endless: entry != timed, since: before, waits: true}
			k.all[key] = w
		}
		if entry == parted && w.since == before && w.gone.IsZero() {
			w.gone = now
		}
	}
}

// list reads the list of the process before, and keeps it, until ctx ends.
func (s *Sidecar) list(ctx context.Context) {
	s.readAgain()
	refresh := time.NewTicker(pingEvery)
	defer refresh.Stop()
	for ctx.Err() == nil {
		err := error(nil)
		select {
		case <-ctx.Done():
		case <-s.adopts:
			if err = s.read(ctx); err != nil {
				s.readAgain()
			}
		case <-s.listing:
			err = s.write(ctx)
		case <-refresh.C:
			err = s.write(ctx)
		}
		pause := listPause
		if err != nil {
			s.opts.Log.Warn("the list of keys is not kept: the process that follows would not know them", "err", err)
			pause = time.Second
		}
		_ = lifetime.Sleep(ctx, pause)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.ReplyTimeout)
	defer cancel()
	s.lookLast(last)
	s.keys.listAll(s)
	_ = s.write(last)
	s.leaving.Store(true)
	s.announce(last)
}

// listAll puts all keys on the list again: the process that follows may have taken one off that this one has locked meanwhile.
func (k *keys) listAll(s *Sidecar) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, w := range k.all {
		if w.entry != "" {
			k.change(s, key, w.entry)
		}
	}
}

// lookLast takes the keys that hold nothing off the list: a sidecar that ends leaves no more than its service's locks.
func (s *Sidecar) lookLast(ctx context.Context) {
	s.ask(ctx, s.keys.due(time.Now().Add(24*time.Hour)), false, func(key string, _ *order, _ time.Time, reply protocol.Reply, _ error) bool {
		if reply.Kind == protocol.Silence || ctx.Err() != nil {
			return false
		}
		s.keys.mu.Lock()
		defer s.keys.mu.Unlock()
		if w := s.keys.all[key]; w != nil && reply.Kind == protocol.Integer && reply.Int == protocol.KeepNothing {
			s.keys.forget(s, key, w)
		}
		return true
	})
}

func (s *Sidecar) readAgain() { poke(s.adopts) }

func (s *Sidecar) read(ctx context.Context) error {
	conn, err := s.opts.Pool.GetContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	entries, err := redis.StringMap(redis.DoWithTimeout(conn, s.opts.ReplyTimeout, "HGETALL", ListKey(s.opts.Namespace, s.opts.Name)))
	if err == nil {
		s.keys.adopt(s, entries, time.Now())
	}
	return err
}

// write sends what has changed, and gives the list its TTL: longer than any lock on it can last without its process.
func (s *Sidecar) write(ctx context.Context) (err error) {
	s.keys.mu.Lock()
	changes, lasts := s.keys.changes, max(s.keys.longest, s.opts.Lease)+s.opts.MemberLease+2*pingEvery
	s.keys.changes = map[string]string{}
	listed := len(s.keys.all) > 0
	s.keys.mu.Unlock()
	if !listed && len(changes) == 0 {
		return nil
	}
	defer func() {
		if err != nil {
			s.keys.mu.Lock()
			maps.Copy(changes, s.keys.changes)
			s.keys.changes = changes
			s.keys.mu.Unlock()
		}
	}()
	name := ListKey(s.opts.Namespace, s.opts.Name)
	conn, err := s.opts.Pool.GetContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for key, entry := range changes {
		if entry == "" {
			err = conn.Send("HDEL", name, key)
		} else {
			err = conn.Send("HSET", name, key, entry)
		}
		if err != nil {
			return err
		}
	}
	if err = conn.Send("PEXPIRE", name, lasts.Milliseconds()); err != nil {
		return err
	}
	if err = conn.Flush(); err != nil {
		return err
	}
	for range len(changes) + 1 {
		if _, err = redis.ReceiveWithTimeout(conn, s.opts.ReplyTimeout); err != nil {
			return err
		}
	}
	return nil
}
