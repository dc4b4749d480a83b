package census

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// readPage reads the replies about a page's keys.
func (s *scanner) readPage(p *page) error {
	s.judge.Now, s.emitted = s.serverNow(), 0
	for i := range p.ends {
		if err := s.readString(p, p.key(i)); err != nil {
			return err
		}
	}
	for i := range p.looks {
		if err := s.readLook(p, &p.looks[i]); err != nil {
			return err
		}
	}
	return nil
}

// readString reads GETRANGE and PTTL.
func (s *scanner) readString(p *page, key []byte) error {
	value, _, valueErr := s.reply.bulk(p.scratch[:0], Peek)
	if fatal(valueErr) {
		return valueErr
	}
	p.scratch = value
	ttl, ttlErr := s.reply.integer()
	if fatal(ttlErr) {
		return ttlErr
	}
	switch {
	case valueErr == nil && ttlErr == nil:
		if ttl == -2 { // gone since SCAN
			return nil
		}
		s.look = Look{Key: key, Type: "string", Value: value, TTL: ttl} // one for all: there are many
		return s.report(&s.look)
	case ttlErr == nil && isWrongType(valueErr):
		s.looks = append(s.looks, look{key: bytes.Clone(key), ttl: ttl})
		return nil
	case ttlErr != nil && (valueErr == nil || isWrongType(valueErr)):
		return s.refused(ttlErr)
	}
	return s.refused(valueErr)
}

// readLook reads the reply to a look's question.
func (s *scanner) readLook(p *page, l *look) error {
	switch l.ask {
	case askSize:
		return s.readSize(l)
	case askFields, askValues:
		return s.readHash(l)
	default:
		return s.readGuard(p, l)
	}
}

func (s *scanner) readSize(l *look) error {
	if s.wantsType() {
		kind, _, err := s.reply.bulk(nil, 32)
		if fatal(err) {
			return err
		}
		if err != nil {
			s.lacks("TYPE", err)
		}
		l.kind = string(kind)
	}
	fields, err := s.reply.integer()
	switch {
	case fatal(err):
		return err
	case isWrongType(err):
		return s.report(&Look{Key: l.key, Type: l.kind, TTL: l.ttl})
	case err != nil:
		return s.refused(err)
	case fields >= 1 && fields <= MaxFields:
		s.looks = append(s.looks, look{ask: askFields, key: l.key, ttl: l.ttl})
		return nil
	case fields == 0: // gone
		return nil
	}
	return s.report(&Look{Key: l.key, Type: "hash", TTL: l.ttl})
}

// readGuard reads the value of the guard beside a bridge value. A user without the right to the guard's name
// sees none.
func (s *scanner) readGuard(p *page, l *look) error {
	guard, _, err := s.reply.bulk(p.scratch[:0], Peek)
	if fatal(err) {
		return err
	}
	p.scratch = guard
	if err != nil && !isWrongType(err) {
		s.lacks("the guard beside a lock", err)
	}
	return s.report(&Look{Key: l.key, Type: "string", Value: l.value, TTL: l.ttl, Guard: guard, SawGuard: err == nil, asked: true})
}

// readHash reads HKEYS or HGETALL. Values are asked for only where the fields may be a lock's: those of other
// hashes may be large.
func (s *scanner) readHash(l *look) error {
	n, err := s.reply.array()
	switch {
	case fatal(err):
		return err
	case isWrongType(err): // another type by now
		return nil
	case err != nil:
		return s.refused(err)
	}
	k := Look{Key: l.key, Type: "hash", TTL: l.ttl}
	whole := true
	text := func() (text []byte, err error) {
		text, length, err := s.reply.bulk(nil, Peek)
		whole = whole && length < Peek
		return text, err
	}
	for i := 0; i < n; i++ {
		var f Field
		if f.Name, err = text(); err != nil {
			return err
		}
		if l.ask == askValues {
			i++
			if f.Value, err = text(); err != nil {
				return err
			}
		}
		if len(k.Fields) <= MaxFields {
			k.Fields = append(k.Fields, f)
		}
	}
	if l.ask == askFields && whole && s.judge.mayBeLock(&k) {
		s.looks = append(s.looks, look{ask: askValues, key: l.key, ttl: l.ttl})
		return nil
	}
	if l.ask == askFields || !whole { // not a lock's
		k.Fields = nil
	}
	return s.report(&k)
}

// report classifies a key and hands it on.
func (s *scanner) report(k *Look) error {
	f := s.judge.Classify(k)
	if f.Format == Bridge && k.TTL != NoTTL && !k.asked {
		s.looks = append(s.looks, look{ask: askGuard, key: bytes.Clone(k.Key), value: bytes.Clone(k.Value), ttl: k.TTL})
		return nil
	}
	if (f.Confidence == None || f.Beside) && !s.wantsType() {
		return nil
	}
	s.row = Row{Look: *k, Now: s.judge.Now, Finding: f}
	began := time.Now()
	err := s.census.record(&s.row)
	s.emitted += time.Since(began)
	return err
}

func isWrongType(err error) bool {
	var refused redis.Error
	return errors.As(err, &refused) && strings.HasPrefix(string(refused), "WRONGTYPE")
}
