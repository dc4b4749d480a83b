package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// settings are what a command line may leave out: each is the default of the flag of its name. A flag that is given
// counts first, then the environment, then the file. No file is read that nobody named: it decides which server a
// command writes to.
type settings struct {
	Redis       string   `yaml:"redis"`
	TLSCA       string   `yaml:"tls-ca"`
	TLSCert     string   `yaml:"tls-cert"`
	TLSKey      string   `yaml:"tls-key"`
	TLSInsecure bool     `yaml:"tls-insecure"`
	Namespace   string   `yaml:"namespace"`
	Match       []string `yaml:"match"`
}

// values are the settings by the names of their flags; what is not set has none.
func (s settings) values() map[string][]string {
	all := map[string][]string{"match": s.Match}
	for name, value := range map[string]string{"redis": s.Redis, "tls-ca": s.TLSCA, "tls-cert": s.TLSCert, "tls-key": s.TLSKey, "namespace": s.Namespace} {
		if value != "" {
			all[name] = []string{value}
		}
	}
	if s.TLSInsecure {
		all["tls-insecure"] = []string{"true"}
	}
	return all
}

// settingNames are in the order in which they are applied: the namespace before the patterns that belong to it.
var settingNames = []string{"redis", "tls-ca", "tls-cert", "tls-key", "tls-insecure", "namespace", "match"}

// readSettings reads a settings file. What it does not know, it refuses: a misspelt namespace must not be the default one.
func readSettings(file string) (s settings, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return s, fileError(err)
	}
	from := yaml.NewDecoder(bytes.NewReader(content))
	from.KnownFields(true)
	err = from.Decode(&s)
	if err == nil {
		if err = from.Decode(new(settings)); errors.Is(err, io.EOF) { // one document
			err = nil
		} else if err == nil {
			err = errors.New("it holds more than one document")
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		var wrong *yaml.TypeError
		if errors.As(err, &wrong) {
			err = errors.New(strings.ReplaceAll(strings.Join(wrong.Errors, "; "), " not found in type main.settings", " is unknown"))
		}
		return s, usageError("it may hold "+strings.Join(settingNames, ", "), "%s: %w", file, err)
	}
	return s, nil
}

// environmentSettings reads LOCKMIGRATE_REDIS, LOCKMIGRATE_NAMESPACE and their like; LOCKMIGRATE_MATCH holds patterns
// with blanks between them.
func environmentSettings(getenv func(string) string) map[string][]string {
	all := map[string][]string{}
	for _, name := range settingNames {
		value := getenv("LOCKMIGRATE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
		switch {
		case value == "":
		case name == "match":
			all[name] = strings.Fields(value)
		default:
			all[name] = []string{value}
		}
	}
	return all
}

// applySettings gives the flags that were not given the values of the environment, and then of the file.
func applySettings(cmd *cobra.Command, env *environment) error {
	type source struct {
		name   string
		values map[string][]string
	}
	sources := []source{{"the environment", environmentSettings(env.getenv)}}
	if file := cmp.Or(env.global.config, env.getenv("LOCKMIGRATE_CONFIG")); file != "" {
		s, err := readSettings(file)
		if err != nil {
			return err
		}
		sources = append(sources, source{file, s.values()})
	}
	for _, name := range settingNames {
		f := cmd.Flags().Lookup(name)
		if f == nil || f.Changed || name == "match" && cmd.CommandPath() == "lockmigrate stage set" { // there a pattern is a change
			continue
		}
		for _, source := range sources {
			values := source.values[name]
			if len(values) == 0 || name == "match" && !ofNamespace(cmd, source.values["namespace"]) {
				continue
			}
			if err := setFlag(f, values); err != nil {
				return usageError("give --"+name, "%s of %s: %w", name, source.name, err)
			}
			break
		}
	}
	return checkValues(cmd)
}

const negative = "may be negative"

// mayBeNegative lets a flag have a number below zero. No other flag has one.
func mayBeNegative(f *pflag.FlagSet, name string) {
	f.Lookup(name).Annotations = map[string][]string{negative: {}}
}

// checkValues refuses numbers, patterns and namespaces that no command can mean, wherever they come from.
func checkValues(cmd *cobra.Command) (err error) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		_, allowed := f.Annotations[negative]
		_, number := map[string]bool{"duration": true, "int": true, "int64": true, "float64": true}[f.Value.Type()]
		if number && !allowed && err == nil && strings.HasPrefix(f.Value.String(), "-") {
			err = usageError("give 0 or more", "--%s %s is negative", f.Name, f.Value)
		}
	})
	if err != nil {
		return err
	}
	if dry := cmd.Flags().Lookup("dry-run"); dry != nil && dry.Value.String() == "true" && cmd.Flags().Lookup("execute").Value.String() == "true" {
		return usageError("choose one", "--dry-run writes nothing, and --execute writes")
	}
	for _, name := range []string{"match", "lock", "keep"} { // from here on each is a pattern of the server's
		f := cmd.Flags().Lookup(name)
		if f == nil {
			continue
		}
		if list, ok := f.Value.(pflag.SliceValue); !ok {
			err = f.Value.Set(stages.Unescape(f.Value.String()))
		} else if texts := list.GetSlice(); slices.Contains(texts, "") {
			err = usageError("give a pattern such as 'lock:*'", "a --%s pattern is empty", name)
		} else if len(texts) > 0 {
			err = list.Replace(stages.UnescapeAll(texts))
		}
		if err != nil {
			return err
		}
	}
	if f := cmd.Flags().Lookup("namespace"); f != nil && f.Value.String() != f.DefValue {
		if err := stages.CheckName(f.Value.String()); err != nil {
			return usageError("choose another --namespace", "%w", err)
		}
	}
	return nil
}

// ofNamespace tells that a source's patterns are of the namespace that the command is about.
func ofNamespace(cmd *cobra.Command, namespace []string) bool {
	f := cmd.Flags().Lookup("namespace")
	return f == nil || len(namespace) == 0 || f.Value.String() == namespace[0]
}

// setFlag sets a flag and leaves it unchanged in name: nobody gave it on the command line.
func setFlag(f *pflag.Flag, values []string) error {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.Replace(values)
	}
	if len(values) > 1 {
		return fmt.Errorf("this command takes one, not %d", len(values))
	}
	if f.Value.Type() == "bool" {
		if _, err := strconv.ParseBool(values[0]); err != nil {
			return fmt.Errorf("%s is neither true nor false", shown(values[0]))
		}
	}
	return f.Value.Set(values[0])
}
