package strategy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

// maxQuotaKeys bounds how many tags or callers a quota tells apart in one window.
const maxQuotaKeys = 100_000

// QuotaBy says what a quota counts by.
type QuotaBy int

// What a quota counts by.
const (
	ByTag    QuotaBy = iota // all callers of a tag together
	ByCaller                // all tags of a caller together; see WithCaller
)

// A QuotaError is why a quota vetoes a call.
type QuotaError struct {
	Of    string // the tag or caller
	Limit int64
	Per   time.Duration
	At    time.Time // when the next window begins; zero for a call that asks for more than the limit
}

func (e *QuotaError) Error() string {
	s := fmt.Sprintf("the quota of %.140q is %d numbers per %s", e.Of, e.Limit, shortUnits.Replace(e.Per.String()))
	if e.At.IsZero() {
		return s + ", which is less than one call asks for; ask for fewer at a time"
	}
	return s + "; come back at " + e.At.UTC().Format(time.RFC3339)
}

// shortUnits writes 24h for 24h0m0s.
var shortUnits = strings.NewReplacer("h0m0s", "h", "m0s", "m")

// RetryAt returns when to ask again; zero if asking again is in vain.
func (e *QuotaError) RetryAt() time.Time { return e.At }

// Quota returns a plugin that lets at most limit numbers be asked for in each
// window of time, such as a minute or a day, by tag or by caller. Windows begin at
// multiples of their length in UTC. What was asked for counts also if issuing it
// then fails. The counts are this process's own.
func Quota(name string, by QuotaBy, limit int64, per time.Duration) (Plugin, error) {
	if limit < 1 {
		return Plugin{}, &hapax.ValueError{Field: "limit", Value: limit, Allowed: "1 or more", Err: hapax.ErrInvalidArgument}
	}
	if per < time.Second {
		return Plugin{}, &hapax.ValueError{Field: "per", Value: per, Allowed: "1s or more", Err: hapax.ErrInvalidArgument}
	}
	q := &quota{by: by, limit: limit, per: per, used: map[string]int64{}}
	return Plugin{Name: name, Usage: q.usage, Before: func(ctx context.Context, c Call) error {
		of := c.Tag()
		if by == ByCaller {
			of = CallerOf(ctx)
		}
		return q.take(of, int64(c.N), time.Now())
	}}, nil
}

type quota struct {
	by    QuotaBy
	limit int64
	per   time.Duration

	mu    sync.Mutex // guards what follows
	began time.Time
	used  map[string]int64 // in the window that began then
}

func (q *quota) take(of string, n int64, now time.Time) error {
	// Before it is counted, and without a time: no window will ever have room for it.
	if n > q.limit {
		return &QuotaError{Of: of, Limit: q.limit, Per: q.per}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rollLocked(now)
	key := of
	// Names come from outside: beyond what is told apart, all others share one count, and one limit.
	if _, known := q.used[key]; !known && len(q.used) >= maxQuotaKeys {
		key = OtherCallers
	}
	if q.used[key]+n > q.limit {
		return &QuotaError{Of: of, Limit: q.limit, Per: q.per, At: q.began.Add(q.per)}
	}
	q.used[key] += n
	return nil
}

// rollLocked begins a new window if the current one is over, or more than a window
// ahead: then the clock was wrong when it began. A clock that is set back by less
// gives nobody a window twice.
func (q *quota) rollLocked(now time.Time) {
	if began := now.UTC().Truncate(q.per); began.After(q.began) || q.began.Sub(began) > q.per {
		q.began = began
		clear(q.used)
	}
}

// usage returns what is used up of each quota.
func (q *quota) usage() []Usage {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rollLocked(time.Now())
	all := make([]Usage, 0, len(q.used))
	for of, used := range q.used {
		u := Usage{Tag: of, Window: q.per, Current: used, Limit: q.limit}
		if q.by == ByCaller {
			u.Tag, u.Caller = "", of
		}
		all = append(all, u)
	}
	slices.SortFunc(all, Usage.compare)
	return all
}
