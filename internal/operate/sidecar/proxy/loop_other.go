//go:build !linux

package proxy

// Here no connection is served without goroutines.
type (
	loop  struct{}
	loops struct{}
)

func newLoops(*Server) (none loops) { return none }
func (loops) run()                  {}
func (loops) close()                {}
func (*Server) park(*conn) bool     { return false }
func (*conn) unpark()               {}
func (*conn) unloop() error         { return nil }
