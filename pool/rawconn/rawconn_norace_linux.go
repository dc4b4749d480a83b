//go:build !race

package rawconn

func synchronize() {}
