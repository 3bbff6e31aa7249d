package witness

import (
	"context"
	"fmt"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A founding is the join of a process that has not used the store before, while nobody
// served: no witness knows the grants before it. Its row stands in the store, and a floor that
// was looked up outside the store under an earlier founding is to be looked up again.
const rowFounding = "founding" // of driver.TableGuard

// tableFloors has a row for each tag whose columns were read: the founding under which.
const tableFloors = "floors"

// Known reports whether a witness of the fleet knows a tag's line, because its columns were
// read by this fleet, with the note of that time, and returns the founding to note that with.
func (g *Guarded) Known(ctx context.Context, tag string) (known bool, above, founding string, err error) {
	type answer struct {
		known           bool
		above, founding string
	}
	a, err := asServing(ctx, g, func(ctx context.Context, s store) (answer, error) {
		founding, err := s.Row(ctx, driver.TableGuard, rowFounding)
		if err != nil {
			return answer{}, unavailable(err)
		}
		read, err := s.Row(ctx, tableFloors, tag)
		above, known := strings.CutPrefix(string(read), floorRow(string(founding)))
		return answer{known, above, string(founding)}, unavailable(err)
	})
	return a.known, a.above, a.founding, err
}

// NoteKnown notes that a tag's columns were read, or that an operator spoke for them, after
// Known returned the founding. The rest of the note is in above.
func (g *Guarded) NoteKnown(ctx context.Context, tag, above, founding string) error {
	_, err := asServing(ctx, g, func(ctx context.Context, s store) (nothing, error) {
		old, err := s.Row(ctx, tableFloors, tag)
		next := []byte(floorRow(founding) + above)
		if err != nil || string(old) == string(next) {
			return nothing{}, unavailable(err)
		}
		_, err = g.pulsed(s).SwapRow(ctx, tableFloors, tag, old, next) // another has noted the same, or will read anew
		return nothing{}, err
	})
	return err
}

func floorRow(founding string) string { return "read since " + founding + " " }

// noteFounding notes in the store that this process founds a fleet. It does so before its witness
// takes the store for known, so that a process that is killed in between does it again.
func (g *Guarded) noteFounding(ctx context.Context, s store) error {
	g.mu.Lock()
	founds, row := g.me.founds, g.me.row
	g.mu.Unlock()
	if !founds || g.witness.StoreID() != "" {
		return nil
	}
	old, err := s.Row(ctx, driver.TableGuard, rowFounding)
	if err != nil || string(old) == row { // noted before it was interrupted
		return unavailable(err)
	}
	ok, err := g.pulsed(s).SwapRow(ctx, driver.TableGuard, rowFounding, old, []byte(row))
	if err == nil && !ok {
		err = unavailable(fmt.Errorf("another process has founded the fleet at the same time"))
	}
	return err
}

// A floor is proposed so many of a tag's largest segments above its mark, and no lower than with the default's.
const (
	proposedSegments = 10
	proposedMargin   = proposedSegments * hapax.DefaultMaxStep
)

// proposedFloor returns a floor for a node of which no more is known than by others: above the segments that any
// tag's rate can have led it to.
func proposedFloor(known, have lines) int64 {
	floor := int64(proposedMargin)
	for _, some := range []lines{known, have} {
		for line, p := range some.pairs {
			d := some.defs[line]
			if _, ok := CutTagLine(line); !ok || d.Kind != "" {
				continue
			}
			// In places, of which a line has twice maxFloor: no sum here overflows.
			widest := max(hapax.DefaultMaxStep, d.Step, d.MaxStep) * max(1, d.Delta)
			floor = max(floor, min(p.Mark, maxFloor)+min(widest, maxFloor/proposedSegments)*proposedSegments)
		}
	}
	return min(floor, maxFloor)
}

// maxFloor is the highest floor that is accepted: half of a line, so that enough is left of a
// tag.
const maxFloor = hapax.MaxMark / 2

// highest returns the highest mark of a segment tag that anybody knows.
func highest(known, have lines) (mark int64, tag string) {
	for _, some := range []lines{known, have} {
		for line, p := range some.pairs {
			if name, ok := CutTagLine(line); ok && some.defs[line].Kind == "" && p.Mark > mark {
				mark, tag = p.Mark, name
			}
		}
	}
	return mark, tag
}
