package client

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

const (
	maxFences = 1000        // lines of which refusals are remembered
	probeTime = time.Second // in which one call finds out for the others
)

// fences remember the lines for which every server has answered that a fence stands. Such an answer ends a
// call, so that its caller may ask again at once: all callers of a fleet would then ask all of its servers,
// just when these are in trouble.
//
// They are remembered line by line, for a server may refuse one and grant the others.
type fences struct {
	mu    sync.Mutex // guards lines and what they hold; never held while waiting
	lines map[string]*fence
}

// fence is what was answered for one line.
type fence struct {
	err    error // the last answer
	rounds int   // in which it was given, one after the other
	until  time.Time
}

// granted asks for a grant of a line, or returns the last answer where that was a fence a moment ago.
func granted[T any](f *fences, line string, ask func() (T, error)) (T, error) {
	if err := f.standing(line); err != nil {
		var zero T
		return zero, err
	}
	v, err := ask()
	f.learn(line, err)
	return v, err
}

// standing returns what the servers are known to answer, or nil for a call that is to ask them.
func (f *fences) standing(line string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.lines[line]
	if known == nil {
		return nil
	}
	now := time.Now()
	if now.Before(known.until) {
		return known.err
	}
	known.until = now.Add(probeTime) // unless it learns sooner
	return nil
}

// learn notes what the servers have answered.
func (f *fences) learn(line string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !errors.Is(err, hapax.ErrFenced) {
		delete(f.lines, line)
		return
	}
	now := time.Now()
	known := f.lines[line]
	if known == nil {
		// Names come from callers, any number of them.
		if len(f.lines) >= maxFences {
			maps.DeleteFunc(f.lines, func(_ string, old *fence) bool { return now.After(old.until) })
		}
		if len(f.lines) >= maxFences {
			return
		}
		if f.lines == nil {
			f.lines = map[string]*fence{}
		}
		known = &fence{}
		f.lines[line] = known
	}
	known.err = err
	known.rounds++
	known.until = now.Add(hapax.Backoff(known.rounds))
}
