package define

import (
	"fmt"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

// In place of a URL: no columns any more, and that an operator speaks for the columns, with
// a floor, in place of a database that cannot be read.
const (
	floorNone   = "none"
	floorStated = "stated"
)

// Limits of floor_from.
const (
	maxFloors    = 8
	maxFloorText = 200
)

// NewFloors returns the columns that a change of what a tag says brings: none where it says
// nothing of them or takes them away. With stated an operator speaks for the tag's own.
func (x Extra) NewFloors() (all []api.FloorFrom, stated bool) {
	switch {
	case len(x.Floors) == 0 || x.Floors[0].URL == floorNone:
		return nil, false
	case x.Floors[0].URL == floorStated:
		return nil, true
	}
	return x.Floors, false
}

// WithFloors returns a tag's Extra with columns; FloorsNone and FloorsStated stand for words that
// are no list. UpdateTag keeps the rest of the tag's Extra.
func WithFloors(extra string, all []api.FloorFrom) (string, error) {
	t := Read(hapax.Tag{Extra: extra})
	if !t.IsOur {
		return extra, t.Unread
	}
	t.Says.Floors = all
	return t.Says.String(), nil
}

// FloorsNone takes a tag's columns away.
func FloorsNone() []api.FloorFrom { return []api.FloorFrom{{URL: floorNone}} }

// FloorsStated says that a floor stands in for the highest numbers of a tag's columns now.
func FloorsStated() []api.FloorFrom { return []api.FloorFrom{{URL: floorStated}} }

// ParseFloor reads URL,TABLE,COLUMN.
func ParseFloor(text string) (api.FloorFrom, error) {
	parts := strings.Split(text, ",")
	if len(parts) != 3 {
		return api.FloorFrom{}, outOfRange("floor_from", "(not shown)", "URL,TABLE,COLUMN, such as env:ORDERS_DB,orders,id")
	}
	return api.FloorFrom{URL: parts[0], Table: parts[1], Column: parts[2]}, nil
}

// checkFloors judges the columns of a definition.
func (x Extra) checkFloors(hasPeriod bool) error {
	if len(x.Floors) == 0 {
		return nil
	}
	switch {
	case len(x.Floors) > maxFloors:
		return outOfRange("floor_from", fmt.Sprintf("(%d columns)", len(x.Floors)), fmt.Sprintf("up to %d", maxFloors))
	case x.Strategy != "", len(x.Replaced) > 0:
		return outOfRange("floor_from", fmt.Sprintf("(%d columns)", len(x.Floors)), "none where a strategy or a plugin makes the numbers")
	case hasPeriod:
		return outOfRange("floor_from", fmt.Sprintf("(%d columns)", len(x.Floors)), "none where numbers restart with each period")
	}
	for _, f := range x.Floors {
		_, name, _ := strings.Cut(f.URL, ":")
		if !strings.HasPrefix(f.URL, "env:") && !strings.HasPrefix(f.URL, "file:") || name == "" || len(f.URL) > maxFloorText || strings.Contains(f.URL, "//") {
			return outOfRange("floor_from url", "(not shown)", "env:NAME, of a variable of the servers with the database's URL, or file:PATH, of a file with it")
		}
		for _, v := range []string{f.Table, f.Column} {
			if v == "" || len(v) > maxFloorText || strings.ContainsFunc(v, func(c rune) bool { return c < ' ' }) {
				return outOfRange("floor_from", v, fmt.Sprintf("a table and a column, each of 1 to %d bytes", maxFloorText))
			}
		}
	}
	return nil
}

// otherFloors returns a tag that gets other columns, or none.
func (k Keys) otherFloors(t Tag, is Extra) (Tag, error) {
	if !t.IsOur {
		return Tag{}, outOfRange("extra", t.Extra, "none beside floor_from")
	}
	all := is.Floors
	switch all[0].URL {
	case floorStated:
		return t, nil
	case floorNone:
		all = nil
	}
	t.Says.Floors = all
	c, err := k.Code(t)
	if err == nil {
		err = t.Says.checkFloors(c.HasPeriod())
	}
	if t.write(); err == nil && len(t.Extra) > hapax.MaxExtraBytes {
		err = outOfRange("floor_from", fmt.Sprintf("(%d bytes)", len(t.Extra)), fmt.Sprintf("shorter: with the tag's code it has to fit into %d bytes", hapax.MaxExtraBytes))
	}
	return t, err
}
