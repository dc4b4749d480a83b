package proxy

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// Listener is where clients connect.
type Listener struct {
	Address  string      // host:port, or unix:PATH
	TLS      *tls.Config // nil for none
	Rewriter Rewriter
}

// door is a listener, open or not.
type door struct {
	Listener
	listener net.Listener // nil while it is closed
	actual   string       // its address; differs from Address where that has port 0
	commands map[string]Keys
}

// welcome opens the doors.
func (s *Server) welcome(inherited map[string]net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open || s.over != "" {
		s.reached = true
		return nil
	}
	for _, d := range s.doors {
		if d.listener = inherited[d.Address]; d.listener != nil {
			delete(inherited, d.Address)
		} else if err := d.listen(); err != nil {
			for _, d := range s.doors {
				d.close()
			}
			return err
		}
		if !strings.HasPrefix(d.Address, unixPrefix) {
			d.actual = d.listener.Addr().String()
		}
	}
	for _, d := range s.doors {
		listener := d.listener
		s.running.Go(func() { s.accept(d, listener) })
		s.opts.Log.Info("listening", "address", d.actual)
	}
	s.reached, s.open, s.problem = true, true, nil
	if s.previous != nil {
		_ = s.previous.SetDeadline(time.Now().Add(heirWithin))
		_, _ = s.previous.Write([]byte{1})
		_, _ = s.previous.Read(make([]byte, 1)) // it answers when it has let go
		_ = s.previous.SetDeadline(time.Time{})
		s.before, s.previous = s.previous, nil
		s.follow(s.before)
	}
	return nil
}

const unixPrefix = "unix:"

func (d *door) listen() (err error) {
	path, isUnix := strings.CutPrefix(d.Address, unixPrefix)
	if !isUnix {
		address := d.actual
		if d.listener, err = net.Listen("tcp", address); err != nil {
			return fmt.Errorf("cannot listen on %s: %w", d.Address, err)
		}
		return nil
	}
	if d.listener, err = listenUnix(path, 0o660); err != nil {
		return fmt.Errorf("cannot listen on %s: %w", d.Address, err)
	}
	return nil
}

// listenUnix listens on a path, also where a process that has ended has left its socket. The socket appears only when it can
// be connected to: one that refuses belongs to nobody.
func listenUnix(path string, mode os.FileMode) (net.Listener, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("another process listens there")
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("there is a file that is no socket")
	}
	hidden := fmt.Sprintf("%s.%d", path, os.Getpid())
	l, err := net.Listen("unix", hidden)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // an heir's is at the same path
	if err = os.Chmod(hidden, mode); err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(hidden)
		return nil, err
	}
	return l, nil
}

// close ends a listener that nobody else has.
func (d *door) close() {
	if d.listener == nil {
		return
	}
	_ = d.listener.Close()
	if path, isUnix := strings.CutPrefix(d.Address, unixPrefix); isUnix {
		_ = os.Remove(path)
	}
	d.listener = nil
}
