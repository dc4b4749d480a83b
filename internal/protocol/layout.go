package protocol

import "strings"

// Layout is where in a value the number stands.
type Layout uint8

const (
	Plain            Layout = iota // the number alone
	UUIDColonNumber                // uuid:number (dialect B)
	NumberDashOwner                // number-pid-thread (dialect H)
	NumberColonOwner               // number:pid (dialect Q)
	MaybeQuoted                    // the number, or the number in double quotes (dialect K)
)

// String returns the layout's name in arguments of scripts.
func (l Layout) String() string {
	switch l {
	case UUIDColonNumber:
		return "uuid"
	case NumberDashOwner:
		return "dash"
	case NumberColonOwner:
		return "colon"
	case MaybeQuoted:
		return "quoted"
	default:
		return "plain"
	}
}

// join makes the value.
func (l Layout) join(number, owner string) string {
	switch l {
	case UUIDColonNumber:
		return owner + ":" + number
	case NumberDashOwner:
		return number + "-" + owner
	case NumberColonOwner:
		return number + ":" + owner
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
	default:
		number = l.head(value)
		return number, number != ""
	}
}

// head is the text before the first separator: what a reader that takes prefixes looks at.
func (l Layout) head(value string) string {
	separator := ""
	switch l {
	case NumberDashOwner:
		separator = "-"
	case NumberColonOwner:
		separator = ":"
	default:
		return value
	}
	// Ruby's split drops empty leading text only when nothing else is there: "-5" has the head "".
	head, _, _ := strings.Cut(value, separator)
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

// HasOwner tells that values of this layout carry an owner.
func (l Layout) HasOwner() bool { return l != Plain && l != MaybeQuoted }

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
