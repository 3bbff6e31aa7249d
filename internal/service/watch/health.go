package watch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

const (
	// silence is how long a call is out until the store counts as one that does
	// not answer.
	silence = time.Second
	// maxRefused bounds how many lines are known to be refused.
	maxRefused = 4096
)

// The kinds of issuers.
const (
	KindTag  = "tag"
	KindPool = "pool"
)

// A Line names a tag or a pool.
type Line struct{ Kind, Name string }

// Tag names a tag.
func Tag(name string) Line { return Line{KindTag, name} }

// Pool names a pool.
func Pool(name string) Line { return Line{KindPool, name} }

// IsAway reports whether an error is that the store cannot be reached.
func IsAway(err error) bool { return errors.Is(err, hapax.ErrStoreUnavailable) }

// isGuarded reports whether a guard refuses, which tells of that itself for as long as
// it does.
func isGuarded(err error) bool {
	return errors.Is(err, hapax.ErrFenced) || errors.Is(err, hapax.ErrWitnessFailed)
}

// isBarred reports whether nothing can be granted until an operator has done something.
func isBarred(err error) bool {
	return errors.Is(err, hapax.ErrStoreReplaced) || errors.Is(err, hapax.ErrStoreCopied)
}

// health is what the calls on a store have told so far.
type health struct {
	mu      sync.Mutex // guards the fields below
	err     error      // of the last call that told anything about the store; nil: it answered
	told    time.Time  // when; zero: never
	barred  error      // why nothing is granted, until Ping says otherwise
	asked   map[*time.Time]struct{}
	refused map[Line]error // lines that the store or the witness refuses
}

// begin notes that the store is asked; the answer is noted by calling what it returns.
func (h *health) begin() (end func()) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	// By the variable's address: calls that begin at the same moment are two.
	h.asked[&now] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.asked, &now)
	}
}

// Tell notes what a call says about the store.
func (h *health) Tell(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err, h.told = err, time.Now()
	if isBarred(err) {
		h.barred = err
	}
}

// admit notes that the store grants.
func (h *health) admit() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.barred = nil
}

// Trouble returns what is wrong with the store as far as is known.
func (h *health) Trouble() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for since := range h.asked {
		// One that began before the last answer tells nothing: the store answered another meanwhile.
		if silent := now.Sub(*since); silent >= silence && !since.Before(h.told) {
			return fmt.Errorf("%w: it has not answered for %v", hapax.ErrStoreUnavailable, silent.Truncate(time.Second))
		}
	}
	return cmp.Or(h.barred, h.err)
}

// passing are the codes of answers that say nothing about what can be issued.
var passing = []*hapax.Error{
	hapax.ErrInvalidArgument, hapax.ErrInvalidTag, hapax.ErrInvalidLayout, hapax.ErrFieldRange,
	hapax.ErrTagNotFound, hapax.ErrTagDeleted, hapax.ErrTagExists, hapax.ErrKindMismatch,
	hapax.ErrLeaseLost, hapax.ErrNotSupported, hapax.ErrClosed, hapax.ErrRefillPending,
}

// Note keeps why a line cannot be issued from, until a grant on it comes.
func (h *health) Note(line Line, err error) {
	code := hapax.CodeOf(err)
	isPassing := slices.ContainsFunc(passing, func(e *hapax.Error) bool { return e.Code() == code })
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		delete(h.refused, line)
	// Answers about the store, the guard or this call alone would hide why the line is refused.
	case IsAway(err), isGuarded(err), isPassing, len(h.refused) >= maxRefused:
	default:
		h.refused[line] = err
	}
}

// Refusals returns the lines that the store or the witness refuses, and why.
func (h *health) Refusals() map[Line]error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.refused)
}
