//go:build race

package forecast

const raced = true
