//go:build !unix

package proxy

import "math"

func descriptorsAtMost() int { return math.MaxInt32 }
