package driver

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAClosedGroupRefuses(t *testing.T) {
	var g Background
	g.Close()
	assert.False(t, g.Begin())
	assert.False(t, g.Go(func() { t.Error("it ran") }))
	here := false
	g.GoOrDo(func() { here = true })
	assert.True(t, here, "on the caller's goroutine")
	g.Close()
}

func TestAnEndTooMany(t *testing.T) {
	var g Background
	assert.True(t, g.Begin())
	g.End()
	assert.Panics(t, g.End)
}

// Close waits for what was counted in, and for what that starts while Close waits.
func TestCloseWaits(t *testing.T) {
	var g Background
	assert.True(t, g.Begin())
	closed, started, finish := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() { g.Close(); close(closed) }()
	for g.Begin() { // until it has been closed
		g.End()
		runtime.Gosched()
	}
	var order []string
	g.Fork(func() {
		close(started)
		<-finish
		order = append(order, "the last task")
	})
	<-started
	g.Extend()
	g.End()
	g.End()
	select {
	case <-closed:
		t.Error("Close has not waited")
	default:
	}
	close(finish)
	<-closed
	assert.Equal(t, []string{"the last task"}, order)
}

// Whatever races with Close either runs before Close returns, or is refused.
func TestCloseBesideStarts(t *testing.T) {
	for range 300 {
		var g Background
		var starters, closers sync.WaitGroup
		var over atomic.Bool
		var started, ran atomic.Int64
		for range 3 {
			starters.Go(func() {
				task := func() {
					if over.Load() {
						t.Error("a task ran after Close")
					}
					ran.Add(1)
				}
				for g.Go(task) {
					started.Add(1)
				}
			})
		}
		for range 2 {
			closers.Go(func() {
				g.Close()
				over.Store(true)
			})
		}
		closers.Wait()
		starters.Wait()
		assert.Equal(t, started.Load(), ran.Load())
	}
}
