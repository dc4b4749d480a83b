//go:build !race

package lockmigrate

func synchronize() {}
