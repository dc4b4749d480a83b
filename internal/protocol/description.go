package protocol

import (
	"errors"
	"fmt"
	"time"
)

// Description is a legacy.Dialect, field by field: the name of a known dialect, or what is special about one of the user's own.
type Description struct {
	Name         string
	Unit         time.Duration
	Float        bool
	Extra        int
	AtOrBefore   bool
	TakesAny     bool
	TakesMissing bool
	BlindDelete  bool
	Poll         time.Duration
	Form         string
}

// Rules returns the dialect that is meant. The zero value is JedisMS.
func (c Description) Rules() (*Dialect, error) {
	if c == (Description{}) {
		return JedisMS, nil
	}
	known, err := DialectNamed(c.Name)
	switch {
	case c == (Description{Name: c.Name}):
		return known, err
	case c.Name == "":
		return nil, errors.New("a dialect of your own needs a Name")
	case known != nil:
		return nil, fmt.Errorf("dialect %s is a known one: leave the other fields zero, or choose another name", c.Name)
	case Refused(c.Name) != "":
		return nil, err
	}
	unit, timed := map[time.Duration]Unit{0: Milliseconds, time.Millisecond: Milliseconds, time.Second: Seconds, time.Nanosecond: Nanoseconds}[c.Unit]
	form, formed := map[string]Layout{"": Plain, "uuid:number": UUIDColonNumber, "number-owner": NumberDashOwner, "number:owner": NumberColonOwner}[c.Form]
	switch {
	case !timed:
		return nil, fmt.Errorf("dialect %s: Unit %v: must be a nanosecond, a millisecond or a second", c.Name, c.Unit)
	case c.Float && c.Unit != time.Second:
		return nil, fmt.Errorf("dialect %s: Float with Unit %v: the unit must be a second", c.Name, c.Unit)
	case !formed:
		return nil, fmt.Errorf("dialect %s: Form %q: must be uuid:number, number-owner or number:owner", c.Name, c.Form)
	case c.Extra < 0 || c.Extra > 1_000_000:
		return nil, fmt.Errorf("dialect %s: Extra %d: must be from 0 to 1,000,000", c.Name, c.Extra)
	case c.Poll != 0 && (c.Poll < time.Millisecond || c.Poll > time.Hour):
		return nil, fmt.Errorf("dialect %s: Poll %v: must be from 1 ms to 1 h", c.Name, c.Poll)
	}
	rules := &Dialect{
		Name: c.Name, Unit: unit, Extra: int64(c.Extra), AtOrBefore: c.AtOrBefore,
		OnForeign: ForeignHeld, Release: ReleaseUnexpired, Poll: c.Poll, Layout: form,
	}
	if c.Float {
		rules.Unit, rules.Syntax = FloatSeconds, PythonFloat
	}
	if c.TakesAny {
		rules.Win = OldIsExpired
	}
	if c.TakesMissing {
		rules.Missing = MissingExpired
	}
	if c.BlindDelete {
		rules.Release = ReleaseBlind
	}
	if rules.Poll == 0 {
		rules.Poll = JedisMS.Poll
	}
	return rules, nil
}
