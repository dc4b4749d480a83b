package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// choice is the value of a flag that takes one of a few words.
type choice[T any] struct {
	to  *T
	all []T
}

// choose adds such a flag to a command. What stands in to is its default.
func choose[T any](cmd *cobra.Command, to *T, name, usage string, all ...T) {
	c := choice[T]{to, all}
	cmd.Flags().Var(c, name, usage)
	completes(cmd, name, c.words)
}

func (c choice[T]) words() []string {
	words := make([]string, len(c.all))
	for i, one := range c.all {
		words[i] = fmt.Sprint(one)
	}
	return words
}

// String implements pflag.Value, as do the methods below.
func (c choice[T]) String() string { return fmt.Sprint(*c.to) }

// Type is a string's: help shows the default in quotes.
func (c choice[T]) Type() string { return "string" }

func (c choice[T]) Set(word string) error {
	i := slices.Index(c.words(), word)
	if i < 0 {
		return errors.New("there is no such word") // flagError says which there are
	}
	*c.to = c.all[i]
	return nil
}

func (c choice[T]) hint() string { return oneOf(c.words()) }

// completes offers words for a flag in the shell, which asks for them: no other command line pays for the list.
func completes(cmd *cobra.Command, flag string, words func() []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return words(), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag does not exist: a programming error
	}
}

// given are those of the named flags that stand on the command line; without names all that the command has for itself.
func given(cmd *cobra.Command, names ...string) (flags []string) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && (len(names) == 0 || slices.Contains(names, f.Name)) {
			flags = append(flags, "--"+f.Name)
		}
	})
	return flags
}

// oneOf is a hint for a word that is none of those there are.
func oneOf(words []string) string {
	last := len(words) - 1
	return "choose " + strings.Join(words[:last], ", ") + " or " + words[last]
}

func dialectNames() (names []string) {
	for _, d := range protocol.Dialects() {
		names = append(names, d.Name)
	}
	return names
}
