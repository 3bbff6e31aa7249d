package witness

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// used are the tags of which this process was granted numbers. They are compared with the
// store where it was granted numbers since, and all in turn once a minute.
type used struct {
	mu    sync.Mutex      // guards the fields below
	known map[string]bool // whether numbers were granted since the tag was compared last
	order []string        // those first that were compared in turn longest ago
	left  int             // how many of these the present turn has left
	turn  time.Duration   // when the next turn begins
	since []string        // those whose known is true
}

// turnEvery is how often all tags are compared at least.
const turnEvery = time.Minute

func (u *used) add(tag string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known == nil {
		u.known = map[string]bool{}
	}
	waits, old := u.known[tag]
	if !waits {
		u.known[tag] = true
		u.since = append(u.since, tag)
	}
	if !old {
		u.order = append(u.order, tag)
	}
}

// due reports whether there are tags to compare now.
func (u *used) due(now time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.since) > 0 || u.left > 0 || now >= u.turn && len(u.order) > 0
}

// next returns the tags that are to be compared now.
func (u *used) next(now time.Duration) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.left == 0 && now >= u.turn {
		u.left, u.turn = len(u.order), now+turnEvery
	}
	n := min(len(u.since), driver.MaxNamed)
	some := slices.Clone(u.since[:n])
	for _, tag := range some {
		u.known[tag] = false
	}
	if u.since = u.since[n:]; len(u.since) == 0 {
		u.since = nil
	}
	n = min(u.left, driver.MaxNamed-len(some))
	turn := u.order[:n:n]
	u.order, u.left = append(u.order[n:], turn...), u.left-n
	return append(some, turn...)
}

// again has tags compared that could not be.
func (u *used) again(tags []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, tag := range tags {
		if !u.known[tag] {
			u.known[tag] = true
			u.since = append(u.since, tag)
		}
	}
}

// compare reads some of the tags of which this process was granted numbers: one that is
// lower than the witness knows was set back by itself, whether or not it is used meanwhile.
func (g *Guarded) compare(ctx context.Context, s store) error {
	names := g.used.next(g.now())
	err := g.compareTags(ctx, s, names)
	if err != nil {
		g.used.again(names)
	}
	return err
}

// compareTags compares tags with the witness's record of them.
func (g *Guarded) compareTags(ctx context.Context, s store, names []string) error {
	if len(names) == 0 {
		return nil
	}
	known := make(map[string]Pair, len(names))
	for _, name := range names {
		known[name], _ = g.witness.Pair(TagLine(name))
	}
	tags, err := s.TagsNamed(ctx, names)
	if err != nil {
		return unavailable(err)
	}
	have := make(map[string]Pair, len(tags))
	for _, t := range tags {
		have[t.Name] = Pair{t.Token, t.Mark}
		if err := g.asBefore(t); err != nil { // which has blocked it
			delete(known, t.Name)
		}
	}
	for name, want := range known {
		if has, ok := have[name]; ok && !has.Less(want) {
			continue
		}
		t, err := s.Tag(ctx, name) // a server that lagged behind may have answered
		if err == nil {
			err = g.asBefore(t)
		}
		switch {
		case errors.Is(err, hapax.ErrTagNotFound), errors.Is(err, hapax.ErrStoreRolledBack):
			return g.isBehind(lacksLine(TagLine(name), want, Pair{}))
		case isUnreadable(err):
			g.block(TagLine(name))
		case err != nil:
			return unavailable(err)
		case Pair{t.Token, t.Mark}.Less(want):
			return g.isBehind(lacksLine(TagLine(name), want, Pair{t.Token, t.Mark}))
		}
	}
	return nil
}
