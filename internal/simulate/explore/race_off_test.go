//go:build !race

package explore

const searchLimit = DefaultStates
