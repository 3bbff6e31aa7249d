package storetest

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var segmentChecks = []check{
	{"segments/consecutive", segments, checkConsecutive},
	{"segments/size", segments, checkSize},
	{"segments/delta", segments, checkDelta},
	{"segments/line end", segments, checkLineEnd},
	{"segments/refused", segments, checkRefused},
	{"segments/concurrent", segments, checkConcurrent},
	{"segments/edited at the same time", segments, checkEdited},
	{"segments/next handle", durableTags, checkSegmentsStay},
}

// checkConsecutive: without faults each grant begins where the one before it
// ended, and the tag that comes with it is the one stored.
func checkConsecutive(e *env) {
	tag := e.segment("t", 10)
	mark := tag.Mark
	for _, n := range []int64{1, 0, 1, 1, 1000, 0, 7, 1 << 40, 0, 2} {
		a := e.allocate(tag.Name, n)
		if n == 0 {
			n = 10
		}
		equal(e, "the grant", a.Grant, hapax.Grant{Lo: mark, Hi: mark + n})
		mark += n
		tag.Mark = mark
		equal(e, "the allocation's tag", a.Tag, tag)
		equal(e, "the stored tag", e.tag(tag.Name), tag)
	}
}

// checkSize: a size out of range is refused and changes nothing.
func checkSize(e *env) {
	tag := e.segment("t", 10)
	for _, n := range []int64{-1, math.MinInt64, hapax.MaxStep + 1, math.MaxInt64} {
		_, err := e.store.Allocate(e.ctx, tag.Name, n, "")
		e.wantErr("a size out of range", err, hapax.ErrInvalidArgument)
		if v, ok := errors.AsType[*hapax.ValueError](err); !ok || v.Field != "n" {
			e.Errorf("the error for n = %d is %v; want a ValueError that names n", n, err)
		}
	}
	equal(e, "the tag", e.tag(tag.Name), tag)
	equal(e, "the largest grant", e.allocate(tag.Name, hapax.MaxStep).Grant, hapax.Grant{Lo: 1, Hi: 1 + hapax.MaxStep})
}

// checkDelta: n numbers of a tag take n times its delta of the line.
func checkDelta(e *env) {
	tag := e.create(hapax.Tag{Name: e.name("t"), Start: 50, Step: 7, Delta: 100, Remainder: 99, Extra: "e\u0301\x00\n\"'"}, hapax.CreateFirstUse)
	mark := int64(50)
	for _, n := range []int64{1, 0, 3} {
		a := e.allocate(tag.Name, n)
		if n == 0 {
			n = 7
		}
		equal(e, "the grant", a.Grant, hapax.Grant{Lo: mark, Hi: mark + 100*n})
		mark += 100 * n
		tag.Mark = mark
		equal(e, "the allocation's tag", a.Tag, tag)
	}
	wide := e.create(hapax.Tag{Name: e.name("wide"), Delta: hapax.MaxDelta}, hapax.CreateFirstUse)
	equal(e, "the largest grant of all", e.allocate(wide.Name, hapax.MaxStep).Grant, hapax.Grant{Lo: 1, Hi: 1 + hapax.MaxStep*hapax.MaxDelta})
	end := e.create(hapax.Tag{Name: e.name("end"), Start: hapax.MaxMark - 25, Delta: 10}, hapax.CreateFirstUse)
	_, err := e.store.Allocate(e.ctx, end.Name, 3, "")
	e.wantErr("more than is left", err, hapax.ErrLineExhausted)
	equal(e, "the last grant", e.allocate(end.Name, 2).Grant, hapax.Grant{Lo: hapax.MaxMark - 25, Hi: hapax.MaxMark - 5})
}

// checkEdited: no edit of the definition lowers a mark that allocations raise at
// the same time.
func checkEdited(e *env) {
	const callers, edits, beside = 6, 20, 3
	tag := e.segment("t", 10)
	var n, edited atomic.Int64
	var mu sync.Mutex // guards grants
	var grants []hapax.Grant
	// One for each allocation: each edit sets some free right before it begins. So there are always some
	// beside it, and never more than a contended line lets through.
	due := make(chan struct{}, callers/2*edits*beside)
	inParallel(e, e.handles(callers), func(ctx context.Context, h roles) error {
		if n.Add(1)%2 == 0 {
			defer func() {
				if edited.Add(1) == callers/2 {
					close(due)
				}
			}()
			mark := tag.Mark
			for i := range edits { // floors that an allocation may pass while the edit is under way
				for range beside {
					due <- struct{}{}
				}
				step, floor, extra := 1+rand.Int64N(20), mark+rand.Int64N(60), strings.Repeat("x", i)
				edited, err := h.store.UpdateTag(ctx, tag.Name, driver.TagUpdate{Step: &step, Floor: &floor, Extra: &extra})
				if err != nil {
					return err
				}
				mark = edited.Mark
			}
			return nil
		}
		for range due {
			a, err := h.store.Allocate(ctx, tag.Name, 0, "")
			if err != nil {
				return err
			}
			mu.Lock()
			grants = append(grants, a.Grant)
			mu.Unlock()
		}
		return nil
	})
	e.disjoint("allocations while the tag is edited", grants, false)
	next := e.allocate(tag.Name, 1).Grant
	e.disjoint("allocations while the tag is edited", append(grants, next), false)
}

// checkLineEnd: the last number is MaxMark-1; what does not fit is refused and
// leaves the rest to be had.
func checkLineEnd(e *env) {
	tag := e.create(hapax.Tag{Name: e.name("t"), Start: hapax.MaxMark - 10, Step: 5}, hapax.CreateExplicit)
	take := func(n int64) error { _, err := e.store.Allocate(e.ctx, tag.Name, n, ""); return err }
	e.must(take(7))
	for _, n := range []int64{4, 0, hapax.MaxStep} {
		e.wantErr("more than is left", take(n), hapax.ErrLineExhausted)
	}
	equal(e, "the last grant", e.allocate(tag.Name, 3).Grant, hapax.Grant{Lo: hapax.MaxMark - 3, Hi: hapax.MaxMark})
	for _, n := range []int64{1, 0, hapax.MaxStep} {
		e.wantErr("after the last number", take(n), hapax.ErrLineExhausted)
	}
	equal(e, "the mark", e.tag(tag.Name).Mark, hapax.MaxMark)
}

// checkRefused: no grants from tags that do not exist, are deleted or are of
// another kind.
func checkRefused(e *env) {
	gone := e.segment("gone", 10)
	_, err := e.store.DeleteTag(e.ctx, gone.Name)
	e.must(err)
	flake := e.create(hapax.Tag{Name: e.name("flake"), Kind: hapax.KindSnowflake}, hapax.CreateExplicit)
	for name, sentinel := range map[string]*hapax.Error{
		e.name("unknown"): hapax.ErrTagNotFound,
		gone.Name:         hapax.ErrTagDeleted,
		flake.Name:        hapax.ErrKindMismatch,
	} {
		_, err := e.store.Allocate(e.ctx, name, 1, "")
		e.wantErr("Allocate", err, sentinel)
	}
	for _, name := range []string{"", strings.Repeat("x", hapax.MaxTagBytes+1), e.name("\xff"), e.name("\x00")} {
		_, err := e.store.Allocate(e.ctx, name, 1, "")
		if !errors.Is(err, hapax.ErrTagNotFound) && !errors.Is(err, hapax.ErrInvalidTag) {
			e.Errorf("Allocate of %q: error is %v; want ErrTagNotFound or ErrInvalidTag", name, err)
		}
	}
}

// checkConcurrent: grants taken at the same time are disjoint and leave no gap.
func checkConcurrent(e *env) {
	const callers, rounds = 8, 12
	tags := []hapax.Tag{e.segment("a", 10), e.segment("b", 10)}
	grants := e.allocateFromAll(e.handles(callers), tags, rounds)
	for i, tag := range tags {
		e.disjoint("tag "+tag.Name, grants[i], true)
		var sum int64
		for _, g := range grants[i] {
			sum += g.Len()
		}
		equal(e, "the mark", e.tag(tag.Name).Mark, 1+sum)
	}
}

// allocateFromAll has every handle take grants of every tag at the same time,
// and returns them by tag. Each caller must see its own grants ascend.
func (e *env) allocateFromAll(handles []roles, tags []hapax.Tag, rounds int) [][]hapax.Grant {
	var mu sync.Mutex // guards grants
	grants := make([][]hapax.Grant, len(tags))
	inParallel(e, handles, func(ctx context.Context, h roles) error {
		last := make([]int64, len(tags))
		for range rounds {
			for i, tag := range tags {
				a, err := h.store.Allocate(ctx, tag.Name, rand.Int64N(20), "")
				if err != nil {
					return err
				}
				if a.Grant.Lo < last[i] {
					e.Errorf("a caller got %v after %d", a.Grant, last[i])
				}
				last[i] = a.Grant.Hi
				mu.Lock()
				grants[i] = append(grants[i], a.Grant)
				mu.Unlock()
			}
		}
		return nil
	})
	return grants
}

// inParallel runs f for every handle at once and reports their errors.
func inParallel(e *env, handles []roles, f func(ctx context.Context, h roles) error) {
	e.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, h := range handles {
		wg.Go(func() {
			<-start
			if err := f(e.ctx, h); err != nil {
				e.Errorf("in parallel: %v", err)
			}
		})
	}
	close(start)
	wg.Wait()
}

// checkSegmentsStay: the next handle finds every tag as the last one left it.
func checkSegmentsStay(e *env) {
	a, b, gone := e.segment("a", 10), e.segment("b", 20), e.segment("c", 30)
	e.allocate(a.Name, 5)
	floor := int64(1 << 50)
	_, err := e.store.UpdateTag(e.ctx, b.Name, driver.TagUpdate{Floor: &floor})
	e.must(err)
	_, err = e.store.DeleteTag(e.ctx, gone.Name)
	e.must(err)
	before := e.list(2)
	e.reopen()
	after := e.list(100)
	equal(e, "the number of tags", len(after), len(before))
	for i := range min(len(before), len(after)) {
		equal(e, "a tag of the next handle", after[i], before[i])
	}
	equal(e, "the next grant", e.allocate(a.Name, 5).Grant, hapax.Grant{Lo: 6, Hi: 11})
	equal(e, "the grant above the floor", e.allocate(b.Name, 1).Grant.Lo, floor)
}
