//go:build unix

package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// inherit asks the process that has the listeners for them. None is there the first time.
func (s *Server) inherit() (map[string]net.Listener, error) {
	if s.opts.Heir == "" {
		return nil, nil
	}
	conn, err := net.Dial("unix", s.opts.Heir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot take the listeners over: %w", err)
	}
	previous := conn.(*net.UnixConn)
	_ = previous.SetDeadline(time.Now().Add(heirWithin))
	text, rights := make([]byte, 64<<10), make([]byte, syscall.CmsgSpace(4*len(s.doors)))
	n, rightsN, _, _, err := previous.ReadMsgUnix(text, rights)
	_ = previous.SetDeadline(time.Time{})
	var names []string
	var fds []int
	if err == nil {
		err = json.Unmarshal(text[:n], &names)
	}
	if err == nil && rightsN > 0 {
		fds, err = descriptors(rights[:rightsN])
	}
	listeners := map[string]net.Listener{}
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "listener")
		if err == nil && i < len(names) {
			var l net.Listener
			if l, err = net.FileListener(file); err == nil {
				listeners[names[i]] = l
			}
		}
		_ = file.Close()
	}
	if err != nil {
		_ = previous.Close()
		return nil, fmt.Errorf("cannot take the listeners over: %w", err)
	}
	s.previous = previous
	return listeners, nil
}

func descriptors(rights []byte) ([]int, error) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	return syscall.ParseUnixRights(&messages[0])
}

// bequeath waits for a process to take the listeners over, and closes gone then.
func (s *Server) bequeath(ctx context.Context, background *sync.WaitGroup, gone chan<- struct{}) error {
	l, err := listenUnix(s.opts.Heir, 0o600)
	for until := time.Now().Add(heirWithin); err != nil && time.Now().Before(until) && ctx.Err() == nil; {
		time.Sleep(lookAgainAfter) // the process that had the listeners may not have seen yet that it lost them
		l, err = listenUnix(s.opts.Heir, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", s.opts.Heir, err)
	}
	listener := l.(*net.UnixListener)
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	background.Go(func() {
		defer stop()
		for {
			heir, err := listener.AcceptUnix()
			if err != nil {
				_ = os.Remove(s.opts.Heir)
				return
			}
			took, err := s.give(heir, listener)
			if took {
				close(gone)
				return
			}
			_ = heir.Close()
			s.opts.Log.Warn("another process did not take the listeners over", "error", err)
		}
	})
	return nil
}

// give sends the listeners, and waits until the heir uses them. The connection then lasts until this process ends.
func (s *Server) give(heir *net.UnixConn, control *net.UnixListener) (took bool, err error) {
	if err := s.send(heir); err != nil {
		return false, err
	}
	var word [1]byte
	if _, err = heir.Read(word[:]); err != nil { // it could not reach the server, or listen
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.open = "another process has the listeners", false
	for _, d := range s.doors {
		if d.listener != nil {
			_ = d.listener.Close() // the heir's stays open, at the same path
			d.listener = nil
		}
	}
	_ = control.Close()
	if s.opts.Gone != nil {
		s.opts.Gone()
	}
	_ = os.Remove(s.opts.Heir) // the heir makes its own when it has the answer
	s.heir = heir
	_ = heir.SetDeadline(time.Time{})
	_, _ = heir.Write([]byte{1})
	s.opts.Log.Info("another process has the listeners; serving the connections that are left", "connections", len(s.conns))
	return true, nil
}

// send passes the open listeners on. They stay open here.
func (s *Server) send(heir *net.UnixConn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	var fds []int
	for _, d := range s.doors {
		l, ok := d.listener.(syscall.Conn)
		if !ok {
			continue
		}
		raw, err := l.SyscallConn()
		if err == nil { // not by File, whose Fd makes the listener block
			err = raw.Control(func(fd uintptr) { names, fds = append(names, d.Address), append(fds, int(fd)) })
		}
		if err != nil {
			return err
		}
	}
	text, err := json.Marshal(names)
	if err != nil {
		return err
	}
	_ = heir.SetWriteDeadline(time.Now().Add(heirWithin))
	_, _, err = heir.WriteMsgUnix(text, syscall.UnixRights(fds...), nil)
	return err
}

// descriptorsAtMost is how many files this process may have open.
func descriptorsAtMost() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxInt32
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
