package witness

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Several operators may speak for one node: the higher floor holds, and a
// statement that comes too late is refused.

// say writes an operator's statement about one row, unless another one has said as much
// meanwhile: the higher floor holds.
func (g *Guarded) say(ctx context.Context, s store, name string, said statement) error {
	for {
		raw, err := s.Row(ctx, driver.TableEvidence, name)
		if err != nil {
			return unavailable(err)
		}
		if raw != nil {
			var before statement
			if err := driver.DecodeRow(driver.TableEvidence, name, raw, &before); err != nil {
				return err
			}
			// Nothing is ever lowered: the other operator may have been told that it holds.
			if before.Floor >= said.Floor {
				return nil
			}
			said.Ahead = max(said.Ahead, before.Ahead)
		}
		next, err := json.Marshal(said)
		if err != nil {
			return err
		}
		if ok, err := s.SwapRow(ctx, driver.TableEvidence, name, raw, next); err != nil || ok {
			return unavailable(err)
		}
		// Another has written meanwhile: read again, and compare with that.
		if err := g.rest(ctx); err != nil {
			return err
		}
	}
}

// settled is the state of a node for which another operator has spoken before.
const settled = "settled"

// settledBefore returns the nodes of that name for which an operator had spoken at the
// last decision. ErrInvalidArgument for a floor above the highest of that time: it comes too
// late.
func settledBefore(ctx context.Context, s store, st Statement) (nodes []Node, err error) {
	d, _, err := readDecision(ctx, s)
	if err != nil || d == nil {
		return nil, err
	}
	if err := d.complete(ctx, s); err != nil {
		return nil, err
	}
	for _, row := range slices.Sorted(maps.Keys(d.Stated)) {
		said := d.Stated[row]
		n := Node{Row: row, Name: said.Name, State: settled}
		if !n.isNamed(st.Row) {
			continue
		}
		// The lines were raised with the lower floor, and numbers above it are being granted.
		if floor := d.floor(); st.Floor > floor {
			return nil, tooLate(n, st, floor)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// floor returns the highest floor that operators gave: every segment tag was raised to it.
func (d *decision) floor() (most int64) {
	for _, said := range d.Stated {
		most = max(most, said.Floor)
	}
	return most
}

// inTime returns an error if the fence was ended by another operator's statement about
// the same node, with a lower floor, before this was read.
func inTime(ctx context.Context, s store, fence string, st Statement, a *Adoption) error {
	d, _, err := readDecision(ctx, s)
	if err != nil || d == nil || d.Fence.ID != fence {
		return err
	}
	if err := d.complete(ctx, s); err != nil {
		return err
	}
	for _, n := range a.Stated {
		if _, ok := d.Stated[n.Row]; ok && st.Floor > d.floor() {
			return tooLate(n, st, d.floor())
		}
	}
	return nil
}

func tooLate(n Node, st Statement, floor int64) error {
	return &hapax.ValueError{Field: "floor", Value: st.Floor, Allowed: fmt.Sprintf("at most %d, with which %s was settled before, and the store healed; to go higher, use hapax tags set TAG --floor", floor, n), Err: hapax.ErrInvalidArgument}
}

// propose finds the floor with which an operator can attest for the missing nodes, once for each
// list of them: it takes all evidence to know, as Adopt does.
func (g *Guarded) propose(ctx context.Context, s store, f *Fence) error {
	of := fmt.Sprint(f.ID, f.Ask, f.Missing, f.More)
	g.mu.Lock()
	isKnown := g.proposal.of == of
	g.mu.Unlock()
	if len(f.Missing) == 0 || isKnown {
		return nil
	}
	h, err := g.inquire(ctx, s, f)
	if err != nil {
		return err
	}
	a := h.findMissing()
	have, err := readLines(ctx, s, a.lines)
	if err != nil {
		return unavailable(err)
	}
	floor := proposedFloor(a.lines, have.lines)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.proposal = proposal{of, f.ID, floor}
	return nil
}

// A proposal is a floor for the missing nodes of a fence, proposed to operators.
type proposal struct {
	of    string // the fence and the missing nodes that it was made for
	fence string // the fence's ID
	floor int64
}
