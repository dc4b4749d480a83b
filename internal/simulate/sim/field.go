package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// field is one option of a line: its name, and where its value goes. That is a pointer, or a function that takes the value. The same
// list of fields reads a line and writes it.
type field struct {
	name string
	to   any
}

// set reads the value of a field.
func (f field) set(n int, value string) (err error) {
	switch to := f.to.(type) {
	case *time.Duration:
		*to, err = span(n, value)
	case *Distribution:
		*to, err = distribution(n, value)
	case *PPM:
		*to, err = chance(n, value)
	case *int64:
		*to, err = ppm(n, value)
	case *int:
		var x uint64
		x, err = number(n, value, 31)
		*to = int(x)
	case *uint64:
		*to, err = number(n, value, 64)
	case *string:
		*to = value
	case *bool:
		if *to = value == ""; !*to {
			err = fail(n, "the word alone turns it on: leave out =%s", value)
		}
	case func(string) error:
		err = to(value)
	}
	return err
}

// written is a field as an option of a line, behind a blank; empty where it has no value.
func (f field) written() string {
	value := ""
	switch to := f.to.(type) {
	case *time.Duration:
		if *to != 0 {
			value = to.String()
		}
	case *Distribution:
		if len(*to) > 0 {
			value = text(*to)
		}
	case *PPM:
		if *to > 0 {
			value = fmt.Sprintf("%g%%", float64(*to)/1e4)
		}
	case *int64:
		if *to != 0 {
			value = fmt.Sprintf("%dppm", *to)
		}
	case *int:
		if *to > 0 {
			value = strconv.Itoa(*to)
		}
	case *bool:
		if *to {
			return " " + f.name
		}
	}
	if value == "" {
		return ""
	}
	return " " + f.name + "=" + value
}

// format writes those of the fields that have a value.
func format(fields []field) (line string) {
	for _, f := range fields {
		line += f.written()
	}
	return line
}

// options reads words of the form name=value, and bare names. What says whose they are. The bare words that may stand there too are
// for the error.
func options(n int, words []string, what string, fields []field, bare ...string) error {
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			for _, f := range fields {
				bare = append(bare, f.name)
			}
			return unknown(n, name, bare, "%s has no %q", what, name)
		}
		if err := fields[i].set(n, value); err != nil {
			return err
		}
	}
	return nil
}

// single reads a line of one value.
func single(n int, words []string, to any) error {
	if len(words) != 2 {
		return fail(n, "write: %s VALUE", words[0])
	}
	return field{words[0], to}.set(n, words[1])
}

func number(n int, s string, bits int) (uint64, error) {
	x, err := strconv.ParseUint(s, 10, bits)
	if err != nil {
		return 0, fail(n, "%q is no number", s)
	}
	return x, nil
}

func span(n int, s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fail(n, "%q is no duration such as 1.5s", s)
	}
	return d, nil
}

// shares are the quantiles of which a distribution names the values alone, by their number and what stands between them.
var shares = map[string][]uint32{"1/": {10000}, "2..": {0, 10000}, "4/": {0, 5000, 9900, 10000}}

// distribution reads 1s, 1s..2s, 1ms/2ms/5ms/20ms, or with other shares 10%:1s/50%:2s/100%:9s: so many of the values lie at or below that.
func distribution(n int, s string) (d Distribution, err error) {
	between := "/"
	if strings.Contains(s, "..") {
		between = ".."
	}
	parts := strings.Split(s, between)
	usual, known := shares[strconv.Itoa(len(parts))+between]
	for i, part := range parts {
		var q Quantile
		share, value, given := strings.Cut(part, "%:")
		switch percent, err := strconv.ParseFloat(share, 64); {
		case given && err == nil && percent >= 0 && percent <= 100:
			q.Permyriad = uint32(percent*100 + 0.5)
		case given || !known || strings.Contains(s, "%:"):
			return nil, fail(n, "write 1s, 1s..2s, least/median/p99/greatest, or 10%%:1s/50%%:2s/100%%:9s, not %s", s)
		default:
			q.Permyriad, value = usual[i], part
		}
		if q.Value, err = span(n, value); err != nil {
			return nil, err
		}
		if i > 0 && (q.Permyriad < d[i-1].Permyriad || q.Value < d[i-1].Value) {
			return nil, fail(n, "%s must not fall", s)
		}
		d = append(d, q)
	}
	return d, nil
}

// chance reads 0.1% or a number from 0 to 1.
func chance(n int, s string) (PPM, error) {
	scale := 1e6
	if rest, ok := strings.CutSuffix(s, "%"); ok {
		s, scale = rest, 1e4
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f < 0 || f*scale > 1e6 {
		return 0, fail(n, "%q is no chance such as 0.1%%", s)
	}
	return PPM(f*scale + 0.5), nil
}

// ppm reads 200ppm.
func ppm(n int, s string) (int64, error) {
	x, err := strconv.ParseInt(strings.TrimSuffix(s, "ppm"), 10, 64)
	if err != nil || x > 100000 || x < -100000 {
		return 0, fail(n, "%q is no drift such as 200ppm", s)
	}
	return x, nil
}

// text writes a distribution as the language has it.
func text(d Distribution) string {
	if len(d) == 0 {
		return "0s"
	}
	values, quantiles := make([]string, len(d)), make([]string, len(d))
	given := make([]uint32, len(d))
	for i, q := range d {
		values[i], given[i] = q.Value.String(), q.Permyriad
		quantiles[i] = fmt.Sprintf("%g%%:%v", float64(q.Permyriad)/100, q.Value)
	}
	for _, between := range []string{"/", ".."} {
		if usual, known := shares[strconv.Itoa(len(d))+between]; known && slices.Equal(usual, given) {
			return strings.Join(values, between)
		}
	}
	return strings.Join(quantiles, "/")
}
