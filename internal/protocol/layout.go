package protocol

import (
	"encoding/binary"
	"strconv"
	"strings"
)

// Layout is where in a value the number stands.
type Layout uint8

const (
	Plain            Layout = iota // the number alone
	UUIDColonNumber                // uuid:number (dialect B)
	NumberDashOwner                // number-pid-thread (dialect H)
	NumberColonOwner               // number:pid (dialect Q)
	MaybeQuoted                    // the number, or the number in double quotes (dialect K)
	FSTLong                        // a java.lang.Long as the FST library writes it (dialect V)
)

// layouts have the name of each, and what stands between an owner's part and the number; empty: there is no owner.
var layouts = [...]struct{ name, separator string }{
	Plain: {"plain", ""}, UUIDColonNumber: {"uuid", ":"}, NumberDashOwner: {"dash", "-"}, NumberColonOwner: {"colon", ":"}, MaybeQuoted: {"quoted", ""}, FSTLong: {"fst", ""},
}

// String returns the layout's name in arguments of scripts.
func (l Layout) String() string { return layouts[l].name }

// HasOwner tells that values of this layout carry an owner.
func (l Layout) HasOwner() bool { return layouts[l].separator != "" }

// join makes the value.
func (l Layout) join(number, owner string) string {
	switch l {
	case UUIDColonNumber:
		return owner + ":" + number
	case NumberDashOwner, NumberColonOwner:
		return number + layouts[l].separator + owner
	case FSTLong:
		n, _ := strconv.ParseInt(number, 10, 64) // our own text
		return string(binary.LittleEndian.AppendUint64([]byte(fstHead), uint64(n)))
	default:
		return number
	}
}

// split returns the number's text; ok is false when the value lacks a part.
func (l Layout) split(value string) (number string, ok bool) {
	switch l {
	case UUIDColonNumber:
		// Java's split(":") keeps the second part and ignores what follows it.
		parts := strings.Split(value, ":")
		return at(parts, 1), len(parts) > 1 && javaUUID(parts[0])
	case MaybeQuoted:
		return unquote(value), true
	case FSTLong:
		n, ok := fstLong(value)
		return strconv.FormatInt(n, 10), ok
	default:
		number = l.head(value)
		return number, number != ""
	}
}

// strict returns the number's text from a value that has exactly the form in which clients write it.
func (l Layout) strict(value string) (number string, ok bool) {
	switch l {
	case UUIDColonNumber:
		owner, number, ok := strings.Cut(value, ":")
		groups := strings.Split(owner, "-")
		ok = ok && len(groups) == 5
		for _, g := range groups {
			ok = ok && g != "" && strings.Trim(g, "0123456789abcdefABCDEF") == ""
		}
		return number, ok
	case NumberDashOwner:
		parts := strings.SplitN(value, "-", 3)
		return parts[0], len(parts) == 3 && parts[1] != "" && parts[2] != ""
	case NumberColonOwner:
		number, owner, ok := strings.Cut(value, ":")
		return number, ok && owner != ""
	case MaybeQuoted:
		return unquote(value), true
	case FSTLong:
		if len(value) != len(fstHead)+8 || !strings.HasPrefix(value, fstHead) {
			return "", false
		}
		return strconv.FormatUint(binary.LittleEndian.Uint64([]byte(value[len(fstHead):])), 10), true
	default:
		return value, true
	}
}

// head is the text before the first separator: what a reader that takes prefixes looks at.
func (l Layout) head(value string) string {
	if l != NumberDashOwner && l != NumberColonOwner {
		return value
	}
	// Ruby's split drops empty leading text only when nothing else is there: "-5" has the head "".
	head, _, _ := strings.Cut(value, layouts[l].separator)
	return head
}

// owner returns the owner's part of a value, empty if the layout has none.
func (l Layout) owner(value string) string {
	switch l {
	case UUIDColonNumber:
		head, _, _ := strings.Cut(value, ":")
		return head
	case NumberDashOwner, NumberColonOwner:
		head := l.head(value)
		return strings.TrimLeft(value[len(head):], "-:")
	default:
		return ""
	}
}

// fstHead begins a java.lang.Long of FST 2.57 that takes all eight bytes, which follow, the lowest first.
const fstHead = "\xf6\x82"

// fstLong reads a java.lang.Long as FST does: small numbers take fewer bytes, and what follows is ignored.
func fstLong(value string) (n int64, ok bool) {
	if len(value) < 2 || value[0] != fstHead[0] {
		return 0, false
	}
	width := map[byte]int{0x80: 2, 0x81: 4, fstHead[1]: 8}[value[1]]
	switch {
	case width == 0:
		return int64(int8(value[1])), true
	case len(value) < 2+width:
		return 0, false
	}
	var b [8]byte
	copy(b[8-width:], value[2:2+width])
	return int64(binary.LittleEndian.Uint64(b[:])) >> (64 - 8*width), true // with its sign
}

func unquote(value string) string {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		return value[1 : len(value)-1]
	}
	return value
}

func at(parts []string, i int) string {
	if i < len(parts) {
		return parts[i]
	}
	return ""
}

// javaUUID tells what UUID.fromString of Java 9 and later accepts: five groups of hexadecimal digits
// separated by dashes, each of at least one digit and within 64 bits.
func javaUUID(s string) bool {
	groups := strings.Split(s, "-")
	if len(s) > 36 || len(groups) != 5 {
		return false
	}
	for _, g := range groups {
		g = strings.TrimPrefix(g, "+") // Long.parseLong allows it
		if g == "" || strings.Trim(g, "0123456789abcdefABCDEF") != "" || len(strings.TrimLeft(g, "0")) > 16 {
			return false
		}
	}
	return true
}
