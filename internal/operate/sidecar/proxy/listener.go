package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
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
	file     os.FileInfo // of a Unix socket
}

// welcome opens the doors.
func (s *Server) welcome(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open || s.over != "" {
		return nil
	}
	beside := sync.OnceValue(func() bool { return s.opts.Beside != nil && s.opts.Beside(ctx) })
	for _, d := range s.doors {
		if err := d.listen(beside); err != nil {
			for _, d := range s.doors {
				d.close()
			}
			return fmt.Errorf("cannot listen on %s: %w", d.Address, err)
		}
	}
	for _, d := range s.doors {
		listener := d.listener
		s.accepting.Go(func() { s.accept(d, listener) })
		s.opts.Log.Info("listening", "address", d.actual)
	}
	s.open, s.problem = true, nil
	return nil
}

const unixPrefix = "unix:"

// keepAlive finds a client that has gone without a word, within two minutes.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}

// plainTCP is without Multipath TCP, to whose listeners no program can be attached.
var plainTCP = func() (config net.ListenConfig) {
	config.SetMultipathTCP(false)
	config.KeepAliveConfig = keepAlive
	return config
}()

// listen opens a door. Where the address is in use, it is shared if beside says so: new clients come here from then on.
func (d *door) listen(beside func() bool) (err error) {
	if path, isUnix := strings.CutPrefix(d.Address, unixPrefix); isUnix {
		d.listener, d.file, err = listenUnix(path, beside)
		return err
	}
	d.listener, err = plainTCP.Listen(context.Background(), "tcp", d.actual)
	if errors.Is(err, syscall.EADDRINUSE) && beside() {
		d.listener, err = listenBeside(d.actual)
	}
	if err != nil {
		return err
	}
	share(d.listener)
	d.actual = d.listener.Addr().String()
	return nil
}

// listenUnix listens on a path, also where a process that has ended has left its socket. The socket appears only when it can
// be connected to: one that refuses belongs to nobody.
func listenUnix(path string, beside func() bool) (net.Listener, os.FileInfo, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		if !beside() {
			return nil, nil, errors.New("another process listens there")
		}
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, nil, errors.New("there is a file that is no socket")
	}
	hidden := fmt.Sprintf("%s.%d", path, os.Getpid())
	l, err := net.Listen("unix", hidden)
	if err != nil {
		return nil, nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it is at another path by then
	err = os.Chmod(hidden, 0o660)
	file, failed := os.Lstat(hidden)
	if err = errors.Join(err, failed); err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(hidden)
		return nil, nil, err
	}
	return l, file, nil
}

// lastCall makes a listener accept for a moment only.
func lastCall(l net.Listener) {
	_ = l.(interface{ SetDeadline(t time.Time) error }).SetDeadline(time.Now().Add(lastCallFor))
}

// close ends a listener. A socket that another process has put at its path stays.
func (d *door) close() {
	if d.listener == nil {
		return
	}
	_ = d.listener.Close()
	if path, isUnix := strings.CutPrefix(d.Address, unixPrefix); isUnix {
		if file, err := os.Lstat(path); err == nil && os.SameFile(file, d.file) {
			_ = os.Remove(path)
		}
	}
	d.listener = nil
}
