package census

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// readPage reads the replies about a page's keys.
func (s *scanner) readPage(p *page) error {
	s.judge.Now, s.emitted = s.serverNow(), 0
	for _, key := range p.keys {
		if err := s.readString(key); err != nil {
			return err
		}
	}
	for i := range p.looks {
		if err := s.readLook(&p.looks[i]); err != nil {
			return err
		}
	}
	return nil
}

// readString reads GETRANGE and PTTL.
func (s *scanner) readString(key []byte) error {
	value, valueErr := redis.Bytes(s.reply.Receive())
	if fatal(valueErr) {
		return valueErr
	}
	ttl, ttlErr := redis.Int64(s.reply.Receive())
	switch {
	case fatal(ttlErr):
		return ttlErr
	case valueErr == nil && ttlErr == nil:
		if ttl == -2 { // gone since SCAN
			return nil
		}
		return s.report(&Look{Key: key, Type: "string", Value: value, TTL: ttl})
	case ttlErr == nil && isWrongType(valueErr):
		s.looks = append(s.looks, look{key: key, ttl: ttl})
		return nil
	case ttlErr != nil && (valueErr == nil || isWrongType(valueErr)):
		return s.refused(ttlErr)
	}
	return s.refused(valueErr)
}

// readLook reads the reply to a look's question.
func (s *scanner) readLook(l *look) error {
	switch l.ask {
	case askSize:
		return s.readSize(l)
	case askFields, askValues:
		return s.readHash(l)
	default:
		return s.readGuard(l)
	}
}

func (s *scanner) readSize(l *look) error {
	if s.wantsType() {
		kind, err := redis.String(s.reply.Receive())
		if fatal(err) {
			return err
		}
		if err != nil {
			s.lacks("TYPE", err)
		}
		l.kind = kind
	}
	fields, err := redis.Int64(s.reply.Receive())
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
func (s *scanner) readGuard(l *look) error {
	guard, err := redis.Bytes(s.reply.Receive())
	if fatal(err) {
		return err
	}
	if err != nil && !isWrongType(err) {
		s.lacks("the guard beside a lock", err)
	}
	return s.report(&Look{Key: l.key, Type: "string", Value: l.value, TTL: l.ttl, Guard: guard, SawGuard: err == nil, asked: true})
}

// readHash reads HKEYS or HGETALL. Values are asked for only where the fields may be a lock's: those of other
// hashes may be large.
func (s *scanner) readHash(l *look) error {
	words, err := redis.ByteSlices(s.reply.Receive())
	switch {
	case fatal(err):
		return err
	case isWrongType(err): // another type by now
		return nil
	case err != nil:
		return s.refused(err)
	}
	k := Look{Key: l.key, Type: "hash", TTL: l.ttl}
	if slices.ContainsFunc(words, func(w []byte) bool { return len(w) >= Peek }) { // not a lock's
		return s.report(&k)
	}
	if l.ask == askValues {
		for i := 0; i+1 < len(words); i += 2 {
			k.Fields = append(k.Fields, Field{words[i], words[i+1]})
		}
		return s.report(&k)
	}
	for _, name := range words {
		k.Fields = append(k.Fields, Field{Name: name})
	}
	if s.judge.mayBeLock(&k) {
		s.looks = append(s.looks, look{ask: askValues, key: l.key, ttl: l.ttl})
		return nil
	}
	k.Fields = nil
	return s.report(&k)
}

// report classifies a key and hands it on.
func (s *scanner) report(k *Look) error {
	f := s.judge.Classify(k)
	if f.Format == Bridge && k.TTL != NoTTL && !k.asked {
		s.looks = append(s.looks, look{ask: askGuard, key: k.Key, value: k.Value, ttl: k.TTL})
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
