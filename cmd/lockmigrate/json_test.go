package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/conformance"
	"github.com/lockmigrate/lockmigrate/internal/operate/doctor"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/operate/serve"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// full is a value in which nothing is empty, so that no key of its JSON is left out.
func full[T any]() (value T) {
	fill(reflect.ValueOf(&value).Elem(), nil)
	return value
}

func fill(v reflect.Value, within []reflect.Type) {
	switch kind := v.Kind(); {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(1_700_000_000, 0)))
	case slices.Contains(within, v.Type()): // a part of itself
	case kind == reflect.Struct:
		within = append(within, v.Type())
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), within)
			}
		}
	case kind == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), within)
	case kind == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), within)
	case kind == reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, within)
		fill(value, within)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case kind == reflect.String:
		v.SetString("any")
	case kind == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(1)
	case v.CanUint():
		v.SetUint(1)
	case v.CanFloat():
		v.SetFloat(1)
	}
}

// paths are the keys of a document, each with those around it.
func paths(found map[string]bool, at string, document any) {
	switch d := document.(type) {
	case []any:
		for _, one := range d {
			paths(found, at+"[]", one)
		}
	case map[string]any:
		for key, one := range d {
			found[at+"."+key] = true
			paths(found, at+"."+key, one)
		}
	}
}

// Programs read these keys: none is renamed or lost unnoticed. UPDATE_SCRIPTS=1 writes the list anew; read what has changed in it.
func TestKeysOfEveryJSON(t *testing.T) {
	server := redistest.Mini(t)
	out := new(bytes.Buffer)
	env := surroundings(out, new(bytes.Buffer), false)
	env.global.json = true
	document := func(doc any) func() error { return func() error { return env.encode(doc) } }
	runs := func(args ...string) func() error {
		return func() error {
			stdout, _ := expect(t, exitDone, append(args, "--json", "--redis", server.URL())...)
			_, err := out.WriteString(stdout)
			return err
		}
	}
	refused := unsafeError("do this", "refused")
	row := full[census.Row]()
	row.Key = []byte("\xff")
	fleet := sim.Scenario{Fleet: full[sim.Fleet]()}
	grid := sim.StandardGrid()
	outcome := sim.Outcome{Cell: grid.Cells()[0]}
	outcome.Broken, outcome.Hazards[0] = 1, 1
	tally := &outcome.Sum
	scanned, planned := &scanReport{env: env, w: out}, []*fenceNode{{plans: full[[]fence.Plan]()}}
	keys := map[string]bool{}
	for _, c := range []struct {
		command string
		prints  []func() error
	}{
		{"conformance", []func() error{document(full[conformance.Report]())}},
		{"demo", []func() error{document(full[demonstration]())}},
		{"doctor", []func() error{func() error {
			return printChecks(env, doctor.Findings(full[[]doctor.Check]()), false)
		}, func() error {
			return printChecks(env, doctor.Findings{{ID: "version"}}, false)
		}}},
		{"explore", []func() error{document(full[findingsJSON]())}},
		{"fence", []func() error{func() error { return printPlans(env, planned, []string{"any"}, refused, false) }}},
		{"forecast", []func() error{document(full[*forecast.Forecast]())}},
		{"next", []func() error{func() error { return (&standing{keys: &keysSeen{}}).print(env, full[step]()) }}},
		{"observe", []func() error{document(full[findings]())}},
		{"rehearse", []func() error{document(full[rehearsal]())}},
		{"scan", []func() error{func() error { return errors.Join(scanned.row(&row), scanned.summary(full[census.Summary]())) }}},
		{"scripts", []func() error{runs("scripts")}},
		{"serve", []func() error{document(full[serve.State]())}},
		{"simulate", []func() error{document(sweepJSON(&sim.Report{Outcomes: []sim.Outcome{outcome}}, 1))}},
		{"simulate --scenario", []func() error{func() error { return printFleet(env, &fleet, tally, full[[]overlapOf](), 1) }}},
		{"stage", []func() error{document(full[stages.Document]())}},
		{"stage, a plan", []func() error{func() error {
			err := (&place{env: env, store: &stages.Store{}}).plan(plan{seen: &keysSeen{}, refused: refused, blockers: full[[]stages.Blocker]()})
			assert.Equal(t, refused, err)
			return nil
		}}},
		{"stage list", []func() error{
			runs("stage", "init", "--namespace", "orders", "--match", "lock:*", "--dialect", "jedis-ms", "--shortest-lease", "2s", "--execute"),
			func() error { out.Reset(); return nil }, runs("stage", "list"),
		}},
		{"stage history", []func() error{runs("stage", "history", "--namespace", "orders")}},
		{"stage delete", []func() error{runs("stage", "delete", "--namespace", "orders", "--execute")}},
		{"sweep", []func() error{func() error { return printSweepEntry(env, full[census.SweepEntry]()) }, func() error { return printSweepSummary(env, full[census.Swept](), true) }}},
		{"verify", []func() error{func() error { return printCertificate(env, full[verify.Certificate]()) }}},
		{"version", []func() error{document(full[versionInfo]())}},
	} {
		out.Reset()
		for _, prints := range c.prints {
			require.NoError(t, prints(), c.command)
		}
		read := json.NewDecoder(out)
		for read.More() {
			var doc any
			require.NoError(t, read.Decode(&doc), c.command)
			paths(keys, c.command+": ", doc)
		}
	}
	file := filepath.Join("testdata", "json-keys.txt")
	text := strings.Join(slices.Sorted(maps.Keys(keys)), "\n") + "\n"
	if os.Getenv("UPDATE_SCRIPTS") != "" {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	golden, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(golden), text)
}
