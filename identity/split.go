package identity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
)

const (
	maxParts = 8
	maxBits  = 22 // of all parts together: worker IDs are gone through one by one

	// maxScattered bounds how many worker IDs a Choice may list one by one.
	maxScattered = 1 << 16
)

// A Split divides the worker ID into parts, from the highest bits down, such as a
// service worker and a rack:
//
//	 9              2 1      0
//	+----------------+--------+
//	|  service (8)   |rack (2)|
//	+----------------+--------+
//
// A part holds its value as it is; Start is its lowest value. Worker 1 in rack 1
// is 1<<2 | 1 = 5. The zero Split has no parts.
type Split []Part

// A Part is one part of the worker ID.
type Part struct {
	Name  string
	Bits  int   // width
	Start int64 // the lowest value; the highest is 1<<Bits - 1
}

// ParseSplit reads name:bits or name:bits:start for each part, separated by
// commas, the highest bits first. Errors are a *hapax.ValueError for the field
// "split".
func ParseSplit(text string) (Split, error) {
	var s Split
	bits := 0
	for item := range strings.SplitSeq(text, ",") {
		p, ok := parsePart(strings.TrimSpace(item))
		bits += p.Bits
		if !ok || bits > maxBits || len(s) == maxParts || slices.ContainsFunc(s, func(o Part) bool { return o.Name == p.Name }) {
			return nil, &hapax.ValueError{
				Field: "split", Value: text,
				Allowed: fmt.Sprintf("up to %d parts of %d bits in all as NAME:BITS or NAME:BITS:START, each name once, such as service:8:1,rack:2:1", maxParts, maxBits),
				Err:     hapax.ErrInvalidArgument,
			}
		}
		s = append(s, p)
	}
	return s, nil
}

func parsePart(text string) (p Part, ok bool) {
	items := strings.Split(text, ":")
	if len(items) < 2 || len(items) > 3 || items[0] == "" || strings.ContainsAny(items[0], " =\t") {
		return p, false
	}
	bits, err := strconv.ParseUint(items[1], 10, 6)
	if err != nil || bits < 1 || bits > maxBits {
		return p, false
	}
	p = Part{Name: items[0], Bits: int(bits)}
	if len(items) == 3 {
		p.Start, err = parseID(items[2])
	}
	return p, err == nil && p.Start <= p.max()
}

func (p Part) max() int64 { return 1<<p.Bits - 1 }

// Lowest returns the lowest value of a part; 0 for a name that no part has.
func (s Split) Lowest(name string) int64 {
	for _, p := range s {
		if p.Name == name {
			return p.Start
		}
	}
	return 0
}

// Bits returns the width of all parts together.
func (s Split) Bits() int {
	bits := 0
	for _, p := range s {
		bits += p.Bits
	}
	return bits
}

// Parts returns the parts of a worker ID.
func (s Split) Parts(worker int64) hapax.Fields {
	fields := make(hapax.Fields, len(s))
	for i, p := range slices.Backward(s) {
		fields[i] = hapax.Field{Name: p.Name, Value: worker & p.max()}
		worker >>= p.Bits
	}
	return fields
}

// Worker returns the worker ID that has the given parts, every one of them.
// Errors are a *hapax.ValueError for the field "parts".
func (s Split) Worker(parts hapax.Fields) (int64, error) {
	if err := s.Check(parts); err != nil {
		return 0, err
	}
	var worker int64
	for _, p := range s {
		v, ok := parts.Get(p.Name)
		if !ok {
			return 0, badPart(p.Name, "missing", p)
		}
		worker = worker<<p.Bits | v
	}
	return worker, nil
}

// Check refuses values that no part can have, and names that no part has. Errors
// are a *hapax.ValueError for the field "parts".
func (s Split) Check(parts hapax.Fields) error {
	for _, f := range parts {
		i := slices.IndexFunc(s, func(p Part) bool { return p.Name == f.Name })
		if i < 0 {
			var names []string
			for _, p := range s {
				names = append(names, p.Name)
			}
			allowed := "a part of split: " + strings.Join(names, ", ")
			if len(s) == 0 {
				allowed = "none without a split"
			}
			return &hapax.ValueError{Field: "parts", Value: f.Name, Allowed: allowed, Err: hapax.ErrInvalidArgument}
		}
		if p := s[i]; f.Value < p.Start || f.Value > p.max() {
			return badPart(f.Name, f.Value, p)
		}
	}
	return nil
}

func badPart(name string, value any, p Part) error {
	return &hapax.ValueError{Field: "parts." + name, Value: value, Allowed: fmt.Sprintf("%d to %d", p.Start, p.max()), Err: hapax.ErrInvalidArgument}
}

// Narrow returns what is left of a choice when only worker IDs with the given
// parts may be used. Errors are a *hapax.ValueError for the field "parts".
func (s Split) Narrow(c Choice, parts hapax.Fields) (Choice, error) {
	if err := s.Check(parts); err != nil {
		return c, err
	}
	var mask, want int64
	for _, p := range s {
		mask, want = mask<<p.Bits, want<<p.Bits
		if v, ok := parts.Get(p.Name); ok {
			mask, want = mask|p.max(), want|v
		}
	}
	ids := []int64{}
	for id := range c.all {
		if id&mask != want || !s.starts(id) {
			continue
		}
		// Neighbours need no list, however many they are.
		if len(ids) == maxScattered && ids[0]+maxScattered-1 != ids[maxScattered-1] {
			return c, &hapax.ValueError{Field: "parts", Value: parts, Allowed: fmt.Sprintf("what leaves up to %d worker IDs that do not lie side by side; fix another part, or narrow workers", maxScattered), Err: hapax.ErrInvalidArgument}
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return c, &hapax.ValueError{Field: "parts", Value: fmt.Sprint(parts), Allowed: "what leaves a worker ID of those that identity and workers allow", Err: hapax.ErrInvalidArgument}
	}
	first, last := ids[0], ids[len(ids)-1]
	c.IDs, c.Among = hapax.WorkerRange{Lo: first, Hi: last + 1}, ids
	if int64(len(ids)) == c.IDs.Len() {
		c.Among = nil
	}
	return c, nil
}

// starts reports whether no part of a worker ID is below its lowest value.
func (s Split) starts(worker int64) bool {
	for _, p := range slices.Backward(s) {
		if worker&p.max() < p.Start {
			return false
		}
		worker >>= p.Bits
	}
	return true
}

// all yields the choice's worker IDs.
func (c Choice) all(yield func(int64) bool) {
	if len(c.Among) > 0 {
		for _, id := range c.Among {
			if !yield(id) {
				return
			}
		}
		return
	}
	for id := c.IDs.Lo; id < c.IDs.Hi; id++ {
		if !yield(id) {
			return
		}
	}
}
