package codec

import (
	"fmt"
	"slices"
	"time"
)

// A Unit is how long the periods of a code are.
type Unit uint8

// The units. None is that of a code whose numbers never restart.
const (
	None Unit = iota
	Year
	Quarter
	Month
	Week // of ISO 8601, from Monday on
	Day
	Hour
)

var unitNames = [...]string{"none", "year", "quarter", "month", "week", "day", "hour"}

// String returns the unit's name in English.
func (u Unit) String() string {
	if int(u) < len(unitNames) {
		return unitNames[u]
	}
	return fmt.Sprintf("unit %d", uint8(u))
}

// A Period is a stretch of local time in which numbers count up, known by its
// name: two stretches of one name are one period. Where clocks go back, the hour
// that comes twice is therefore one period of two hours, and no text can be
// issued twice. Periods are comparable; the zero Period is that of codes without
// one.
type Period struct {
	unit Unit
	year int16 // from 1 to 9999, of the fiscal year or the week's year
	part int8  // quarter, month or week
	day  int8
	hour int8
}

// Unit returns the period's unit.
func (p Period) Unit() Unit { return p.unit }

// String returns the suffix that tells a period's line from those of others:
// 2026, 2026Q4, 202611, 2026W47, 20261121 or 2026112113. It depends on nothing
// but the period, whatever its code shows of it. It is empty for the zero [Period].
func (p Period) String() string {
	switch p.unit {
	case Year:
		return fmt.Sprintf("%04d", p.year)
	case Quarter:
		return fmt.Sprintf("%04dQ%d", p.year, p.part)
	case Month:
		return fmt.Sprintf("%04d%02d", p.year, p.part)
	case Week:
		return fmt.Sprintf("%04dW%02d", p.year, p.part)
	case Day:
		return fmt.Sprintf("%04d%02d%02d", p.year, p.part, p.day)
	case Hour:
		return fmt.Sprintf("%04d%02d%02d%02d", p.year, p.part, p.day, p.hour)
	default:
		return ""
	}
}

// tweak returns the digits of the period's name as a number.
func (p Period) tweak() uint64 {
	t := uint64(p.year)
	if p.unit == Quarter {
		return t*10 + uint64(p.part)
	}
	for _, n := range []struct {
		from  Unit
		value int8
	}{{Month, p.part}, {Day, p.day}, {Hour, p.hour}} {
		if p.unit >= n.from {
			t = t*100 + uint64(n.value)
		}
	}
	return t
}

// A calendar cuts time into periods.
type calendar struct {
	unit      Unit
	zone      *time.Location
	fiscal    int  // the month in which the year begins
	fiscalEnd bool // the year is named after the one in which it ends
}

const (
	minYear = 1
	maxYear = 9999
)

// at returns the period of an instant.
func (c *calendar) at(t time.Time) (Period, error) {
	if c.unit == None {
		return Period{}, nil
	}
	t = t.In(c.zone)
	p := Period{unit: c.unit}
	year, month := t.Year(), int(t.Month())
	switch c.unit {
	case Week:
		var week int
		year, week = t.ISOWeek()
		p.part = int8(week)
	default:
		if month < c.fiscal {
			year--
		}
		if c.fiscalEnd {
			year++
		}
	}
	if year < minYear || year > maxYear {
		return Period{}, fmt.Errorf("%w: year %d: want %d to %d", ErrPeriod, year, minYear, maxYear)
	}
	p.year = int16(year)
	switch c.unit {
	case Quarter:
		p.part = int8(c.quarter(month))
	case Month, Day, Hour:
		p.part = int8(month)
	default:
	}
	if c.unit >= Day {
		p.day = int8(t.Day())
	}
	if c.unit == Hour {
		p.hour = int8(t.Hour())
	}
	return p, nil
}

// quarter returns the quarter of the fiscal year in which a month lies.
func (c *calendar) quarter(month int) int { return (month-c.fiscal+12)%12/3 + 1 }

// monthYear returns the calendar's year of a month of a fiscal year.
func (c *calendar) monthYear(year, month int) int {
	if c.fiscalEnd {
		year--
	}
	if month < c.fiscal {
		year++
	}
	return year
}

// wall returns the local times between which the period lies, as if they were
// UTC.
func (c *calendar) wall(p Period) (from, to time.Time) {
	year, month, day, hour := int(p.year), int(p.part), 1, 0
	switch p.unit {
	case Week:
		fourth := time.Date(year, time.January, 4, 0, 0, 0, 0, time.UTC) // lies in week 1
		monday := (int(fourth.Weekday()) + 6) % 7
		from = fourth.AddDate(0, 0, 7*(int(p.part)-1)-monday)
		return from, from.AddDate(0, 0, 7)
	case Year:
		month = c.fiscal
	case Quarter:
		month = (c.fiscal-1+3*(int(p.part)-1))%12 + 1
	case Day, Hour:
		day, hour = int(p.day), int(p.hour)
	default:
	}
	from = time.Date(c.monthYear(year, month), time.Month(month), day, hour, 0, 0, 0, time.UTC)
	switch p.unit {
	case Year:
		to = from.AddDate(1, 0, 0)
	case Quarter:
		to = from.AddDate(0, 3, 0)
	case Month:
		to = from.AddDate(0, 1, 0)
	case Day:
		to = from.AddDate(0, 0, 1)
	default:
		to = from.Add(time.Hour)
	}
	return from, to
}

// maxOffset is more than any zone's distance from UTC.
const maxOffset = 48 * time.Hour

// bounds returns the first instant of the period and the first after its last
// one. Both are the same where clocks skip the period.
func (c *calendar) bounds(p Period) (start, end time.Time) {
	from, to := c.wall(p)
	found := false
	var after time.Time // where clocks show the period's end or more at first
	// Clocks that go back or skip show a local time twice or never: the period may lie in several stretches, or
	// in none.
	for t := from.Add(-maxOffset); t.Before(to.Add(maxOffset)); {
		// One stretch of a single offset at a time.
		local := t.In(c.zone)
		_, seconds := local.Zone()
		offset := time.Duration(seconds) * time.Second
		zoneStart, zoneEnd := local.ZoneBounds()
		first, last := from.Add(-offset), to.Add(-offset)
		if !zoneStart.IsZero() && first.Before(zoneStart) {
			first = zoneStart
		}
		if !zoneEnd.IsZero() && last.After(zoneEnd) {
			last = zoneEnd
		}
		if first.Before(last) {
			if !found {
				found, start = true, first
			}
			end = last
		}
		if after.IsZero() && !zoneStart.IsZero() && !zoneStart.Add(offset).Before(to) {
			after = zoneStart
		}
		if zoneEnd.IsZero() {
			break
		}
		t = zoneEnd
	}
	if !found {
		start, end = after, after
	}
	return start.In(c.zone), end.In(c.zone)
}

// A periodPart is one that shows something of the period, in digits.
type periodPart struct {
	name  string
	width int
	unit  Unit // the finest that it tells apart
	// value returns what the part shows of a period.
	value    func(c *calendar, p Period) int
	min, max int
}

var periodParts = [countPeriodParts]periodPart{
	{"yyyy", 4, Year, func(_ *calendar, p Period) int { return int(p.year) }, minYear, maxYear},
	{"yy", 2, Year, func(_ *calendar, p Period) int { return int(p.year) - century }, 0, 99},
	{"Q", 1, Quarter, func(c *calendar, p Period) int {
		if p.unit == Quarter {
			return int(p.part)
		}
		return c.quarter(int(p.part))
	}, 1, 4},
	{"MM", 2, Month, func(_ *calendar, p Period) int { return int(p.part) }, 1, 12},
	{"GGGG", 4, None, func(_ *calendar, p Period) int { return int(p.year) }, minYear, maxYear},
	{"ww", 2, Week, func(_ *calendar, p Period) int { return int(p.part) }, 1, 53},
	{"dd", 2, Day, func(_ *calendar, p Period) int { return int(p.day) }, 1, 31},
	{"HH", 2, Hour, func(_ *calendar, p Period) int { return int(p.hour) }, 0, 23},
}

// century is the one whose years two digits show.
const century = 2000

// Indexes of periodParts.
const (
	partYear = iota
	partShortYear
	partQuarter
	partMonth
	partWeekYear
	partWeek
	partDay
	partHour
	countPeriodParts
)

// A shownPeriod holds what each part shows, -1 where a code lacks the part.
type shownPeriod [countPeriodParts]int

// findPeriodPart returns the index of the part of that name, or -1.
func findPeriodPart(name string) int {
	return slices.IndexFunc(periodParts[:], func(p periodPart) bool { return p.name == name })
}

// assemble returns the period whose parts show the given values, which are in
// the ranges of their parts. If there is none, it tells which part is at fault.
func (c *calendar) assemble(v *shownPeriod) (p Period, fault int, want string) {
	p = Period{unit: c.unit}
	switch {
	case v[partYear] >= 0:
		p.year = int16(v[partYear])
	case v[partWeekYear] >= 0:
		p.year = int16(v[partWeekYear])
	default:
		p.year = int16(century + v[partShortYear])
	}
	switch {
	case c.unit == Quarter:
		p.part = int8(v[partQuarter])
	case c.unit == Week:
		p.part = int8(v[partWeek])
	case c.unit >= Month:
		p.part = int8(v[partMonth])
	}
	if c.unit >= Day {
		p.day = int8(v[partDay])
	}
	if c.unit == Hour {
		p.hour = int8(v[partHour])
	}
	if want := c.refuse(p); want != "" {
		if c.unit == Week {
			return Period{}, partWeek, want
		}
		return Period{}, partDay, want
	}
	if q := v[partQuarter]; q >= 0 && c.unit != Quarter && q != c.quarter(int(p.part)) {
		return Period{}, partQuarter, fmt.Sprintf("%d, the quarter of the month", c.quarter(int(p.part)))
	}
	return p, -1, ""
}

// refuse returns what is wanted instead of a week or day that its year or month
// lacks, and nothing for a period that exists in the calendar. Zones have no say
// here: what they skip changes with each edition of their database, and what was
// issued has to stay decodable.
func (c *calendar) refuse(p Period) string {
	switch {
	case c.unit == Week:
		// The 28th of December lies in the last week.
		_, weeks := time.Date(int(p.year), time.December, 28, 0, 0, 0, 0, time.UTC).ISOWeek()
		if int(p.part) > weeks {
			return fmt.Sprintf("a week of year %d: 01 to %d", p.year, weeks)
		}
	case c.unit >= Day:
		// Day 0 of the next month is the last one of this.
		next := time.Date(c.monthYear(int(p.year), int(p.part)), time.Month(p.part)+1, 0, 0, 0, 0, 0, time.UTC)
		if int(p.day) > next.Day() {
			return fmt.Sprintf("a day of month %02d: 01 to %d", p.part, next.Day())
		}
	}
	return ""
}
