package proxy

import (
	"bytes"
	hexadecimal "encoding/hex"
	"maps"
	"strconv"
	"strings"
)

const (
	maxHeld = 1 << 20 // bytes of one request, or of a line, that are held: Redis itself wants no line above 64 KiB
	maxWord = 1 << 40 // far above any proto-max-bulk-len, far below an overflow
	maxName = 32      // bytes of the longest command's name, with room
)

// framer finds the requests in what a client sends, in pieces cut anywhere. It reads them as Redis does: what Redis
// takes for a request must be one here too, and the same one. What it takes for an error may be anything, because Redis
// executes nothing more of such a connection.
type framer struct {
	commands map[string]Keys
	covers   func(key []byte) bool

	words   [][]byte // of the request that is looked at
	looked  looked   // how far that is
	args    int64    // words of the passing request that are still to come
	body    int64    // bytes of its present word, with the line break, that are still to come
	watched *looked  // a passing request that was too long to hold has keys that nobody has looked at
	broken  bool     // Redis has refused this stream, or will: nothing more is forwarded

	requests  int64 // that were passed on, up to the present one
	uncounted bool  // some have any number of replies, or none
}

// clientCommand may turn replies off.
const clientCommand = "CLIENT"

// talking stands for the keys of commands after which the server talks as it likes.
var talking = Keys{First: -1}

// withTalking adds to the commands that are looked at those whose replies cannot be counted.
func withTalking(commands map[string]Keys) map[string]Keys {
	all := map[string]Keys{clientCommand: {}}
	for _, name := range strings.Fields("SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SUNSUBSCRIBE MONITOR SYNC PSYNC") {
		all[name] = talking
	}
	maps.Copy(all, commands)
	return all
}

// finding is what stands behind the bytes that pass.
type finding uint8

const (
	nothing  finding = iota // no whole request is left; what is left waits for more
	request                 // one to ask the Rewriter about
	cut                     // a covered key in a request that is too long to be held
	violated                // a protocol error
)

// next returns how many bytes of b pass as they are, what stands behind them, and for a request its length.
// Its words are in f.words, as parts of b.
func (f *framer) next(b []byte) (pass int, found finding, length int) {
	i := 0
	for i < len(b) {
		if f.body > 0 {
			n := min(f.body, int64(len(b)-i))
			i, f.body = i+int(n), f.body-n
			continue
		}
		if f.args > 0 {
			n, head, state := number(b[i:], '$')
			switch {
			case state == more:
				return i, nothing, 0
			case state == bad || n < 0 || n > maxWord:
				return i, violated, 0
			case f.watched != nil:
				found, wait := f.watched.word(f, b[i+head:], n)
				if f.watched.covered {
					found = cut
				}
				if wait || found != nothing {
					return i, found, 0
				}
			}
			i, f.args, f.body = i+head, f.args-1, n+2
			continue
		}
		f.watched = nil
		if b[i] != '*' {
			end, look, state := f.inline(b[i:])
			switch {
			case state == more:
				return i, nothing, 0
			case state == bad:
				return i, violated, 0
			case look:
				return i, request, end
			case len(f.words) > 0:
				f.requests++
			}
			i += end
			continue
		}
		count, head, state := number(b[i:], '*')
		switch {
		case state == more:
			return i, nothing, 0
		case state == bad:
			return i, violated, 0
		case count <= 0: // Redis takes no notice
			i += head
			continue
		}
		keys, known, begin, state := f.name(b[i+head:])
		switch {
		case state == more:
			return i, nothing, 0
		case state == bad:
			return i, violated, 0
		case !known: // its first word may be long, and passes as it comes
			i, f.args = i+head+begin, count-1
			f.requests++
			continue
		}
		n, found := f.look(b[i:], head, count, keys)
		switch found {
		case request:
			return i, request, n
		case nothing:
			if n == 0 { // what there is does not decide it
				return i, nothing, 0
			}
			i += n
			f.requests++
		default:
			return i, found, n
		}
	}
	return i, nothing, 0
}

// name reads a request's first word. Begin is what is read of it when nobody looks at such a command; the rest of the
// word is then in f.body.
func (f *framer) name(b []byte) (keys Keys, known bool, begin int, state lineState) {
	n, head, state := number(b, '$')
	if state != whole {
		return Keys{}, false, 0, state
	}
	if n < 0 || n > maxWord {
		return Keys{}, false, 0, bad
	}
	if n <= maxName {
		if int64(len(b)-head) < n {
			return Keys{}, false, 0, more
		}
		keys, known = f.command(b[head : head+int(n)])
	}
	if !known {
		f.body = n + 2
	}
	return keys, known, head, whole
}

// command finds a command by its name in any case.
func (f *framer) command(name []byte) (Keys, bool) {
	var upper [maxName]byte
	if len(name) > maxName {
		return Keys{}, false
	}
	for i, c := range name {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	keys, known := f.commands[string(upper[:len(name)])]
	if keys == talking {
		f.uncounted = true
		return Keys{}, false
	}
	return keys, known
}

// looked is how far a request has been read whose end has not come yet: a long one that comes in many pieces is read once.
type looked struct {
	keys           Keys
	i              int   // bytes
	j, last, count int64 // words; the last one that can be a key; all
	covered        bool
}

// word looks at the next word, of n bytes, with which b begins.
func (l *looked) word(f *framer, b []byte, n int64) (found finding, wait bool) {
	key, number := l.keys.at(l.j, l.last), l.keys.Counted && l.j == int64(l.keys.First)-1
	switch {
	case !key && !number:
	case n > maxHeld: // no lock has such a key, and nothing can be said of it
		return cut, false
	case int64(len(b)) < n:
		return nothing, true
	case number:
		l.last = l.keys.counted(b[:n], l.count)
	default:
		l.covered = l.covered || f.covers(b[:n])
	}
	l.j++
	return nothing, false
}

// look reads a request that begins b, word by word, from where it stopped before. It returns its length with request; with nothing how much
// of it can pass, 0 for not yet.
func (f *framer) look(b []byte, head int, count int64, keys Keys) (int, finding) {
	l := f.looked
	if l.j == 0 {
		l = looked{keys: keys, i: head, last: keys.last(count), count: count, covered: keys.First == 0}
	}
	f.looked = looked{}
	for l.j < count {
		if l.j > l.last && !l.covered {
			f.args = count - l.j
			return l.i, nothing
		}
		n, size, state := number(b[l.i:], '$')
		if state == bad || n < 0 || n > maxWord {
			return 0, violated
		}
		if state == more || int64(len(b)-l.i-size) < n+2 {
			switch {
			case len(b) < maxHeld:
				f.looked = l
				return 0, nothing
			case l.covered:
				return 0, cut
			default:
				rest := l // which is in memory of its own only here
				f.args, f.watched = count-l.j, &rest
				return l.i, nothing
			}
		}
		if found, _ := l.word(f, b[l.i+size:], n); found != nothing {
			return 0, found
		}
		l.i += size + int(n) + 2
	}
	switch {
	case !l.covered:
		return l.i, nothing
	case l.i > maxHeld:
		return 0, cut
	}
	f.words = f.words[:0]
	for i := head; i < l.i; {
		n, size, _ := number(b[i:], '$')
		f.words = append(f.words, b[i+size:i+size+int(n)])
		i += size + int(n) + 2
	}
	return l.i, request
}

// last returns the last word of count that can be a key.
func (k Keys) last(count int64) int64 {
	last := int64(k.Last)
	switch {
	case k.First == 0:
		return -1
	case k.Counted:
		return count - 1
	case last < 0:
		last += count
	}
	return min(last, count-1)
}

// counted returns the last key where a word says how many there are. Nobody can tell where the keys of a wrong number are,
// and Redis refuses it.
func (k Keys) counted(word []byte, count int64) int64 {
	var n int64
	for _, c := range word {
		if c < '0' || c > '9' || n > count {
			return count - 1
		}
		n = n*10 + int64(c-'0')
	}
	return min(int64(k.First)+n-1, count-1)
}

// at tells whether a word is a key.
func (k Keys) at(j, last int64) bool {
	return k.First > 0 && j >= int64(k.First) && j <= last && (j-int64(k.First))%int64(max(k.Step, 1)) == 0
}

// In returns the numbers of the words that are keys.
func (k Keys) In(words [][]byte) (at []int) {
	count := int64(len(words))
	last := k.last(count)
	if k.Counted && count >= int64(k.First) {
		last = k.counted(words[k.First-1], count)
	}
	for j := range last + 1 {
		if k.at(j, last) {
			at = append(at, int(j))
		}
	}
	return at
}

// Fit tells whether a server takes the words for a command with so many keys. Else it refuses the command, and nobody can tell which are keys.
func (k Keys) Fit(words [][]byte) bool {
	if !k.Counted {
		return true
	}
	number := string(words[k.First-1])
	n, err := strconv.Atoi(number)
	return err == nil && strconv.Itoa(n) == number && n >= 0 && n <= len(words)-k.First
}

type lineState uint8

const (
	whole lineState = iota
	more            // the rest is still to come
	bad             // Redis answers with an error and closes the connection
)

// number reads "*3\r\n" or "$11\r\n", and how many bytes that is. As Redis does, it wants no particular byte behind \r.
func number(b []byte, kind byte) (n int64, size int, state lineState) {
	if len(b) == 0 {
		return 0, 0, more
	}
	if b[0] != kind {
		return 0, 0, bad
	}
	for i := 1; i < len(b) && i < 20; i++ {
		c := b[i]
		if '0' <= c && c <= '9' {
			n = n*10 + int64(c-'0')
			continue
		}
		if c != '\r' || i == 1 || b[1] == '0' && i > 2 {
			break
		}
		if i+1 == len(b) {
			return 0, 0, more
		}
		return n, i + 2, whole
	}
	end := bytes.IndexByte(b[:min(len(b), maxHeld)], '\r')
	switch {
	case end < 0 && len(b) >= maxHeld:
		return 0, 0, bad
	case end < 0 || end+1 == len(b):
		return 0, 0, more
	}
	// What is left is a negative number, or none.
	digits := string(b[1:end])
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n >= 0 || strconv.FormatInt(n, 10) != digits {
		return 0, 0, bad
	}
	return n, end + 2, whole
}

// inline reads a request that is one line of words. Look says that the Rewriter is to be asked.
func (f *framer) inline(b []byte) (size int, look bool, state lineState) {
	end := bytes.IndexByte(b[:min(len(b), maxHeld)], '\n')
	switch {
	case end < 0 && len(b) >= maxHeld:
		return 0, false, bad
	case end < 0:
		return 0, false, more
	}
	line := bytes.TrimSuffix(b[:end], []byte{'\r'})
	if at := bytes.IndexByte(line, 0); at >= 0 { // some servers end the line there, others never find its end
		line = line[:at]
	}
	var ok bool
	if f.words, ok = splitInline(f.words[:0], line); !ok {
		return 0, false, bad
	}
	if len(f.words) == 0 {
		return end + 1, false, whole
	}
	keys, known := f.command(f.words[0])
	if !known {
		return end + 1, false, whole
	}
	look = keys.First == 0
	for _, i := range keys.In(f.words) {
		look = look || f.covers(f.words[i])
	}
	return end + 1, look, whole
}

// splitInline splits a line into words as Redis does: blanks are between them, and double quotes (with escapes) or single
// quotes keep blanks. It is not ok when a quote is not closed, or when no blank follows it.
func splitInline(words [][]byte, line []byte) (_ [][]byte, ok bool) {
	for i := 0; ; {
		for i < len(line) && blank(line[i]) {
			i++
		}
		if i == len(line) {
			return words, true
		}
		var word []byte
		quote := byte(0)
		for done := false; !done; i++ {
			if i == len(line) {
				if quote != 0 {
					return words, false
				}
				break
			}
			c := line[i]
			escaped := c == '\\' && i+1 < len(line)
			switch {
			case quote == '"' && escaped:
				i++
				if b, ok := hex(line[i:]); ok {
					word = append(word, b)
					i += 2
				} else if at := strings.IndexByte("nrtba", line[i]); at >= 0 {
					word = append(word, "\n\r\t\b\a"[at])
				} else {
					word = append(word, line[i])
				}
			case quote == '\'' && escaped && line[i+1] == '\'':
				i++
				word = append(word, '\'')
			case quote != 0 && c == quote:
				if i+1 < len(line) && !blank(line[i+1]) {
					return words, false
				}
				done = true
			case quote == 0 && (c == '"' || c == '\''):
				quote = c
			case quote == 0 && (c == ' ' || c == '\n' || c == '\r' || c == '\t'):
				done = true
			default:
				word = append(word, c)
			}
		}
		words = append(words, word)
	}
}

func blank(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }

// hex reads x41.
func hex(text []byte) (b byte, ok bool) {
	if len(text) < 3 || text[0] != 'x' {
		return 0, false
	}
	var one [1]byte
	_, err := hexadecimal.Decode(one[:], text[1:3])
	return one[0], err == nil
}
