package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// leaveWithin bounds how long a command may take to clean up after an interrupt.
const leaveWithin = 900 * time.Millisecond

// helpColumns is how wide help is, wherever it is read.
const helpColumns = 80

// run executes one command line and returns the exit code. It is the whole program but for the process.
func run(ctx context.Context, env *environment, args []string) int {
	root := newRootCommand(env)
	root.SetArgs(args)
	finished := make(chan error, 1)
	go func() {
		finished <- root.ExecuteContext(ctx)
	}()

	var err error
	late := false
	select {
	case err = <-finished:
	case <-ctx.Done():
		select {
		case err = <-finished:
		case <-time.After(max(leaveWithin, time.Duration(env.grace.Load()))):
			late = true
		}
	}
	if (late || err != nil && ctx.Err() != nil) && !isOwnError(err) {
		err = failedError("what it printed so far is not the whole", "interrupted")
	}
	if err != nil {
		env.say(errorLine(err))
	}
	return exitCode(err)
}

// isOwnError tells that a command chose its exit code itself.
func isOwnError(err error) bool {
	var exit *exitError
	return errors.As(err, &exit)
}

// newRootCommand assembles the program. A new subcommand is one file with one constructor and one line here.
func newRootCommand(env *environment) *cobra.Command {
	root := &cobra.Command{
		Use:           "lockmigrate",
		Short:         "Move a fleet from SETNX/GETSET locks to locks of token and TTL",
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return applySettings(cmd, env) },
	}
	root.Version = buildVersion()
	root.SetVersionTemplate("lockmigrate {{.Version}}\n")
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	wrapped := fmt.Sprint("FlagUsagesWrapped ", helpColumns)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages", wrapped))
	addGlobalFlags(root.PersistentFlags(), &env.global)

	root.AddCommand(
		newDoctorCommand(env),
		newNextCommand(env),
		newObserveCommand(env),
		newVerifyCommand(env),
		newFenceCommand(env),
		newSweepCommand(env),
		newServeCommand(env),
		newSidecarCommand(env),
		newDemoCommand(env),
		newScanCommand(env),
		newScriptsCommand(env),
		newStageCommand(env),
		newForecastCommand(env),
		newRehearseCommand(env),
		newConformanceCommand(env),
		newSimulateCommand(env),
		newExploreCommand(env),
		newVersionCommand(env),
	)
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, args []string) error {
		of, rest, _ := root.Find(args)
		return noArguments(of, rest)
	}
	prepare(root)
	return root
}

// helpText is what --help says of each command above its flags, in lines of helpColumns at most. A section begins with == and the
// command's whole name, and ends with its examples.
//
//go:embed help.txt
var helpText string

// helpSections are the sections by their command's whole name.
var helpSections = sync.OnceValue(func() map[string]string {
	sections := map[string]string{}
	for section := range strings.SplitSeq(strings.TrimPrefix(helpText, "== "), "\n== ") {
		path, text, _ := strings.Cut(section, "\n")
		sections[path] = strings.TrimRight(text, "\n")
	}
	return sections
})

// prepare gives a command, and those below it, what all commands share.
func prepare(c *cobra.Command) {
	if c.Args == nil {
		c.Args, c.ValidArgsFunction = noArguments, cobra.NoFileCompletions
	}
	c.DisableFlagsInUseLine = true
	c.SuggestionsMinimumDistance = 2
	if text, found := helpSections()[c.CommandPath()]; found {
		c.Long, c.Example, _ = strings.Cut(text, "\n\nExamples:\n")
	}
	for _, sub := range c.Commands() {
		prepare(sub)
	}
}

func addGlobalFlags(flags *pflag.FlagSet, global *globalFlags) {
	flags.StringVar(&global.redis, "redis", "", "server `URL`: redis://[user:pass@]host:port/db, rediss:// for TLS, unix:///path, redis+sentinel://h1,h2/master, redis+cluster://h1,h2, or embedded; default $LOCKMIGRATE_REDIS")
	flags.StringVar(&global.tls.CA, "tls-ca", "", "`FILE` of certificates that may sign the server's")
	flags.StringVar(&global.tls.Cert, "tls-cert", "", "`FILE` of this client's certificate")
	flags.StringVar(&global.tls.Key, "tls-key", "", "`FILE` of this client's key")
	flags.BoolVar(&global.tls.Insecure, "tls-insecure", false, "do not check the server's certificate")
	flags.BoolVar(&global.json, "json", false, "print JSON")
}

// noArguments refuses what a command takes for none of its subcommands.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	what, path := "unknown command ", ""
	if cmd.HasParent() {
		what, path = cmd.CommandPath()+" takes no argument, but got ", cmd.CommandPath()+" "
	}
	near := cmd.SuggestionsFor(args[0])
	for _, sub := range cmd.Commands() {
		if sub.Flags().Lookup("execute") != nil && !strings.HasPrefix(sub.Name(), args[0][:min(2, len(args[0]))]) { // "get" does not lead to "set", which writes
			near = slices.DeleteFunc(near, func(name string) bool { return name == sub.Name() })
		}
	}
	hint := seeHelp(cmd)
	if shown(args[0]) == aServerURL {
		hint = "name the server with --redis URL"
	} else if len(near) > 0 {
		hint = fmt.Sprintf("did you mean %q?", path+near[0])
	}
	return usageError(hint, "%s%s", what, shown(args[0]))
}

// flagError turns the flag parser's complaints into usage errors with a suggestion.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	hint := seeHelp(cmd)
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && !cmd.HasParent() && cmd.Flags().NArg() > 0: // a flag of a command that there is none of
		return noArguments(cmd, cmd.Flags().Args())
	case errors.As(err, &unknown) && len(unknown.GetSpecifiedShortnames()) > 1:
		hint = "a long flag begins with two dashes: --help"
	case errors.As(err, &unknown) && shown(unknown.GetSpecifiedName()) == aServerURL:
		return usageError("name the server with --redis URL", "unknown flag")
	case errors.As(err, &invalid):
		if knows, ok := invalid.GetFlag().Value.(interface{ hint() string }); ok {
			hint = knows.hint()
		} else if invalid.GetFlag().Value.Type() == "duration" {
			hint = "write it like 30s, 10m or 1h30m"
			if _, err := strconv.Atoi(invalid.GetValue()); err == nil {
				return usageError(fmt.Sprintf("write %ss", invalid.GetValue()), "--%s %s has no unit", invalid.GetFlag().Name, invalid.GetValue())
			}
		}
		return usageError(hint, "--%s cannot be %s", invalid.GetFlag().Name, shown(invalid.GetValue()))
	}
	return usageError(hint, "%w", err)
}

func seeHelp(cmd *cobra.Command) string {
	return fmt.Sprintf("see %q", cmd.CommandPath()+" --help")
}
