//go:build !race

package forecast

const raced = false
