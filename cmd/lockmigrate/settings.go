package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// settingNames are the flags that a command line may leave out where the environment has them: LOCKMIGRATE_REDIS, LOCKMIGRATE_NAMESPACE and their
// like.
var settingNames = []string{"redis", "tls-ca", "tls-cert", "tls-key", "tls-insecure", "namespace"}

// playing are the commands that play a fleet on a server of their own: they work on another one only if their command line names it, not because
// the shell still has the server of yesterday's tools.
var playing = []string{"lockmigrate demo", "lockmigrate rehearse"}

// applySettings gives the flags that were not given the values of the environment.
func applySettings(cmd *cobra.Command, env *environment) error {
	for _, name := range settingNames {
		value := env.getenv("LOCKMIGRATE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
		f := cmd.Flags().Lookup(name)
		if value == "" || f == nil || f.Changed || name == "redis" && slices.Contains(playing, cmd.CommandPath()) {
			continue
		}
		if err := f.Value.Set(value); err != nil { // unchanged in name: nobody gave it on the command line
			return usageError("give --"+name, "%s of the environment: %w", name, err)
		}
	}
	return checkValues(cmd)
}

// What stands in a printed command for what only its reader knows: pasted as it is, the command fails.
const aPattern, aName = "PATTERN", "NAME"

const negative = "may be negative"

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
		} else if slices.Contains(texts, aPattern) {
			err = usageError("give a pattern such as 'lock:*'", "--%s %s stands for the pattern of your own keys", name, aPattern)
		} else if len(texts) > 0 {
			err = list.Replace(stages.UnescapeAll(texts))
		}
		if err != nil {
			return err
		}
	}
	if f := cmd.Flags().Lookup("namespace"); f != nil && f.Value.String() != f.DefValue {
		if f.Value.String() == aName {
			return usageError("give one such as orders", "--namespace %s stands for a name of your own", aName)
		}
		if err := stages.CheckName(f.Value.String()); err != nil {
			return usageError("choose another --namespace", "%w", err)
		}
	}
	return nil
}
