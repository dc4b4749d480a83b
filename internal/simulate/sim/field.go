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
			if _, ok := err.(*Error); !ok {
				err = fail(n, "%s: %v", word, err)
			}
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

// distribution reads 1s, 1s..2s or 1ms/2ms/5ms/20ms.
func distribution(n int, s string) (Distribution, error) {
	if lo, hi, ok := strings.Cut(s, ".."); ok {
		low, err := span(n, lo)
		if err != nil {
			return nil, err
		}
		high, err := span(n, hi)
		if err == nil && high < low {
			err = fail(n, "%s ends before it begins", s)
		}
		return Uniform(low, high), err
	}
	parts := strings.Split(s, "/")
	if strings.Contains(s, "%:") {
		return quantiles(n, parts)
	}
	var values []time.Duration
	for _, p := range parts {
		d, err := span(n, p)
		if err != nil {
			return nil, err
		}
		if len(values) > 0 && d < values[len(values)-1] {
			return nil, fail(n, "%s must not fall", s)
		}
		values = append(values, d)
	}
	switch len(values) {
	case 1:
		return Fixed(values[0]), nil
	case 4:
		return Spread(values[0], values[1], values[2], values[3]), nil
	}
	return nil, fail(n, "write 1s, 1s..2s, least/median/p99/greatest, or 10%%:1s/50%%:2s/100%%:9s")
}

// quantiles reads 10%:1s, 50%:2s, 100%:9s: so many of the values lie at or below that.
func quantiles(n int, parts []string) (d Distribution, err error) {
	for _, part := range parts {
		share, value, _ := strings.Cut(part, "%:")
		percent, err := strconv.ParseFloat(share, 64)
		if err != nil || !(percent >= 0 && percent <= 100) {
			return nil, fail(n, "%q is no part of a distribution such as 50%%:2s", part)
		}
		q := Quantile{Permyriad: uint32(percent*100 + 0.5)}
		if q.Value, err = span(n, value); err != nil {
			return nil, err
		}
		if len(d) > 0 && (q.Permyriad < d[len(d)-1].Permyriad || q.Value < d[len(d)-1].Value) {
			return nil, fail(n, "%s must not fall", strings.Join(parts, "/"))
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
	switch {
	case len(d) == 0:
		return "0s"
	case len(d) == 1:
		return d[0].Value.String()
	case len(d) == 2 && d[0].Permyriad == 0 && d[1].Permyriad == 10000:
		return d[0].Value.String() + ".." + d[1].Value.String()
	}
	usual := len(d) == 4 && d[0].Permyriad == 0 && d[1].Permyriad == 5000 && d[2].Permyriad == 9900 && d[3].Permyriad == 10000
	parts := make([]string, len(d))
	for i := range d {
		if parts[i] = d[i].Value.String(); !usual {
			parts[i] = fmt.Sprintf("%g%%:%v", float64(d[i].Permyriad)/100, d[i].Value)
		}
	}
	return strings.Join(parts, "/")
}
