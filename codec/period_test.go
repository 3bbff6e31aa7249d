package codec

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"pgregory.net/rapid"
)

func utc(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t
}

func TestPeriods(t *testing.T) {
	const berlin, newYork, kolkata, howe, apia, azores = "{zone:Europe/Berlin}", "{zone:America/New_York}", "{zone:Asia/Kolkata}", "{zone:Australia/Lord_Howe}", "{zone:Pacific/Apia}", "{zone:Atlantic/Azores}"
	for _, tt := range []struct {
		spec, at, suffix, text string
		start, end             string
	}{
		{berlin + "{yyyy}{MM}{dd}-{seq:1}", "2026-11-21T22:59:59Z", "20261121", "20261121-7", "2026-11-20T23:00:00Z", "2026-11-21T23:00:00Z"},
		{berlin + "{yyyy}{MM}{dd}-{seq:1}", "2026-11-21T23:00:00Z", "20261122", "20261122-7", "2026-11-21T23:00:00Z", "2026-11-22T23:00:00Z"},
		{kolkata + "{dd}.{MM}.{yy}-{seq:1}", "2026-11-21T18:30:00Z", "20261122", "22.11.26-7", "2026-11-21T18:30:00Z", "2026-11-22T18:30:00Z"},
		{berlin + "{yyyy}-{seq:1}", "2026-12-31T23:00:00Z", "2027", "2027-7", "2026-12-31T23:00:00Z", "2027-12-31T23:00:00Z"},
		{berlin + "{yyyy}Q{Q}-{seq:1}", "2026-06-30T22:00:00Z", "2026Q3", "2026Q3-7", "2026-06-30T22:00:00Z", "2026-09-30T22:00:00Z"},
		{berlin + "{yyyy}{MM}-{seq:1}", "2026-02-28T23:00:00Z", "202603", "202603-7", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"},
		{berlin + "{Q}{MM}{yy}-{seq:1}", "2026-11-21T12:00:00Z", "202611", "41126-7", "2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z"},

		// The week belongs to the year in which its Thursday lies.
		{berlin + "{GGGG}W{ww}-{seq:1}", "2026-01-01T12:00:00Z", "2026W01", "2026W01-7", "2025-12-28T23:00:00Z", "2026-01-04T23:00:00Z"},
		{berlin + "{GGGG}W{ww}-{seq:1}", "2027-01-01T12:00:00Z", "2026W53", "2026W53-7", "2026-12-27T23:00:00Z", "2027-01-03T23:00:00Z"},

		// A fiscal year is named after the year in which it begins, or ends.
		{berlin + "{fiscal:04}{yyyy}-{seq:1}", "2026-03-31T21:59:59Z", "2025", "2025-7", "2025-03-31T22:00:00Z", "2026-03-31T22:00:00Z"},
		{berlin + "{fiscal:04}{yyyy}Q{Q}-{seq:1}", "2026-03-31T22:00:00Z", "2026Q1", "2026Q1-7", "2026-03-31T22:00:00Z", "2026-06-30T22:00:00Z"},
		{newYork + "{fiscal:10:end}{yyyy}-{seq:1}", "2026-11-21T12:00:00Z", "2027", "2027-7", "2026-10-01T04:00:00Z", "2027-10-01T04:00:00Z"},
		{newYork + "{fiscal:10:end}{yyyy}Q{Q}-{seq:1}", "2026-09-30T12:00:00Z", "2026Q4", "2026Q4-7", "2026-07-01T04:00:00Z", "2026-10-01T04:00:00Z"},
		{newYork + "{fiscal:10:end}{yyyy}{MM}{dd}-{seq:1}", "2024-02-29T12:00:00Z", "20240229", "20240229-7", "2024-02-29T05:00:00Z", "2024-03-01T05:00:00Z"},
		{newYork + "{fiscal:02:end}{yyyy}{MM}{dd}-{seq:1}", "2024-02-29T12:00:00Z", "20250229", "20250229-7", "2024-02-29T05:00:00Z", "2024-03-01T05:00:00Z"},

		// Clocks go forward: the day has 23 hours. They go back: it has 25, and
		// the hour that comes twice is one of two hours.
		{berlin + "{yyyy}{MM}{dd}-{seq:1}", "2026-03-29T12:00:00Z", "20260329", "20260329-7", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{berlin + "{yyyy}{MM}{dd}-{seq:1}", "2026-10-25T12:00:00Z", "20261025", "20261025-7", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		{berlin + "{yyyy}{MM}{dd}{HH}-{seq:1}", "2026-03-29T01:00:00Z", "2026032903", "2026032903-7", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"},
		{berlin + "{yyyy}{MM}{dd}{HH}-{seq:1}", "2026-10-25T00:00:00Z", "2026102502", "2026102502-7", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"},
		{berlin + "{yyyy}{MM}{dd}{HH}-{seq:1}", "2026-10-25T01:59:59Z", "2026102502", "2026102502-7", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"},
		// By half an hour only, so that part of an hour comes twice.
		{howe + "{yyyy}{MM}{dd}{HH}-{seq:1}", "2026-04-04T15:15:00Z", "2026040501", "2026040501-7", "2026-04-04T14:00:00Z", "2026-04-04T15:30:00Z"},
		// At midnight, so that the hour before it comes twice.
		{azores + "{yyyy}{MM}{dd}{HH}-{seq:1}", "2026-10-25T01:30:00Z", "2026102500", "2026102500-7", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"},
		// The day before the one that Samoa skipped.
		{apia + "{yyyy}{MM}{dd}-{seq:1}", "2011-12-30T09:00:00Z", "20111229", "20111229-7", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{apia + "{yyyy}{MM}{dd}-{seq:1}", "2011-12-30T10:00:00Z", "20111231", "20111231-7", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{"{zone:UTC}{yyyy}-{seq:1}", "0001-01-01T00:00:00Z", "0001", "0001-7", "0001-01-01T00:00:00Z", "0002-01-01T00:00:00Z"},
		{"{zone:UTC}{yyyy}-{seq:1}", "9999-12-31T23:59:59Z", "9999", "9999-7", "9999-01-01T00:00:00Z", ""},
	} {
		c := mustParse(t, tt.spec)
		p, err := c.Period(utc(tt.at))
		if err != nil {
			t.Errorf("%s at %s: %v", tt.spec, tt.at, err)
			continue
		}
		if got := p.String(); got != tt.suffix {
			t.Errorf("%s at %s is in %s, want %s", tt.spec, tt.at, got, tt.suffix)
		}
		if got := mustAppend(t, c, p, 7); got != tt.text {
			t.Errorf("%s at %s shows %s, want %s", tt.spec, tt.at, got, tt.text)
		}
		if got, id, err := c.DecodePeriod(tt.text); err != nil || got != p || id != 7 {
			t.Errorf("%s: %s is %d of %s, %v, want 7 of %s", tt.spec, tt.text, id, got, err, p)
		}
		if got, err := c.ParsePeriod(tt.suffix); err != nil || got != p {
			t.Errorf("%s: %s becomes %v, %v", tt.spec, tt.suffix, got, err)
		}
		start, end, err := c.Bounds(p)
		if err != nil || !start.Equal(utc(tt.start)) || tt.end != "" && !end.Equal(utc(tt.end)) {
			t.Errorf("%s: %s goes from %v to %v, %v, want %s to %s", tt.spec, p, start.UTC(), end.UTC(), err, tt.start, tt.end)
		}
		if start.Location() != c.cal.zone {
			t.Errorf("the start is in %v", start.Location())
		}
	}
}

func TestSkippedPeriods(t *testing.T) {
	for _, tt := range []struct{ spec, suffix, at string }{
		{"{zone:Pacific/Apia}{yyyy}{MM}{dd}-{seq:1}", "20111230", "2011-12-30T10:00:00Z"},
		{"{zone:Europe/Berlin}{yyyy}{MM}{dd}{HH}-{seq:1}", "2026032902", "2026-03-29T01:00:00Z"},
	} {
		c := mustParse(t, tt.spec)
		p, err := c.ParsePeriod(tt.suffix)
		if err != nil {
			t.Fatal(err)
		}
		start, end, err := c.Bounds(p)
		if err != nil || !start.Equal(end) || !start.Equal(utc(tt.at)) {
			t.Errorf("%s goes from %v to %v, %v, want %s twice", p, start.UTC(), end.UTC(), err, tt.at)
		}
		// A later edition of the zone's rules might have it.
		if _, _, err := c.DecodePeriod(mustAppend(t, c, p, 3)); err != nil {
			t.Error(err)
		}
	}
}

func TestPeriodErrors(t *testing.T) {
	day := mustParse(t, "{yyyy}{MM}{dd}{seq:3}")
	for _, text := range []string{"", "2026", "2026112", "202611211", "2026112a", "20261321", "20260230", "20261100", "00001121", "+0261121", "2026-1-1", "2026W47", strings.Repeat("1", 100)} {
		if p, err := day.ParsePeriod(text); !errors.Is(err, ErrPeriod) {
			t.Errorf("%q is %v, %v", text, p, err)
		}
	}
	week := mustParse(t, "{GGGG}{ww}{seq:3}")
	for _, text := range []string{"2026W54", "2025W53", "2026W00", "2026w01", "202601"} {
		if p, err := week.ParsePeriod(text); !errors.Is(err, ErrPeriod) {
			t.Errorf("%q is %v, %v", text, p, err)
		}
	}
	short, plain := mustParse(t, "{yy}{seq:3}"), mustParse(t, "{id:3}")
	for _, at := range []string{"1999-12-31T12:00:00Z", "2100-01-01T12:00:00Z"} {
		if p, err := short.Period(utc(at)); !errors.Is(err, ErrPeriod) {
			t.Errorf("%s is shown as %v, %v", at, p, err)
		}
	}
	for _, at := range []time.Time{time.Date(10_000, 1, 2, 0, 0, 0, 0, time.UTC), time.Date(0, 12, 30, 0, 0, 0, 0, time.UTC)} {
		if p, err := day.Period(at); !errors.Is(err, ErrPeriod) {
			t.Errorf("%v is %v, %v", at, p, err)
		}
	}
	p, err := day.Period(epoch)
	if err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func() error{
		"a period of another unit":  func() error { _, err := week.AppendPeriod(nil, p, 1); return err },
		"a period where none is":    func() error { _, err := plain.AppendPeriod(nil, p, 1); return err },
		"no period where one is":    func() error { _, err := day.Append(nil, 1); return err },
		"a number alone":            func() error { _, err := day.Decode("20261121001"); return err },
		"bounds of another unit":    func() error { _, _, err := week.Bounds(p); return err },
		"bounds where no period is": func() error { _, _, err := plain.Bounds(Period{}); return err },
		"a day that another fiscal year has": func() error {
			p, err := mustParse(t, "{fiscal:02:end}{yyyy}{MM}{dd}{seq:3}").ParsePeriod("20250229")
			if err != nil {
				return err
			}
			_, err = day.AppendPeriod(nil, p, 1)
			return err
		},
	} {
		if err := try(); !errors.Is(err, ErrPeriod) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p, err := plain.Period(epoch); err != nil || p != (Period{}) || p.String() != "" || p.Unit() != None {
		t.Errorf("a code without period has %v, %v", p, err)
	}
}

// TestPeriodsFollowEachOther walks through some years, changes of the clocks
// included, and compares every period's bounds with each instant in it.
func TestPeriodsFollowEachOther(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "Atlantic/Azores", "Africa/Casablanca"} {
		for _, form := range []string{"{yyyy}", "{yyyy}{Q}", "{yyyy}{MM}", "{GGGG}{ww}", "{yyyy}{MM}{dd}", "{yyyy}{MM}{dd}{HH}", "{fiscal:07}{yyyy}{Q}"} {
			c := mustParse(t, "{zone:"+zone+"}"+form+"{seq:3}")
			end := time.Time{}
			for at := utc("2025-01-01T00:00:00Z"); at.Before(utc("2027-01-01T00:00:00Z")); at = at.Add(15 * time.Minute) {
				if at.Before(end) {
					continue
				}
				p, err := c.Period(at)
				if err != nil {
					t.Fatal(err)
				}
				start, next, err := c.Bounds(p)
				if err != nil {
					t.Fatal(err)
				}
				if at.Before(start) || !at.Before(next) || !end.IsZero() && !start.Equal(end) {
					t.Fatalf("%s: %v is in %s, from %v to %v; the one before ended at %v", c, at, p, start.UTC(), next.UTC(), end.UTC())
				}
				for _, edge := range []struct {
					at   time.Time
					same bool
				}{{start, true}, {start.Add(-1), false}, {next.Add(-1), true}, {next, false}} {
					if q, err := c.Period(edge.at); err != nil || (q == p) != edge.same {
						t.Fatalf("%s: %v is in %s, %v; %s goes from %v to %v", c, edge.at.UTC(), q, err, p, start.UTC(), next.UTC())
					}
				}
				end = next
			}
		}
	}
}

// anyPeriodSpec draws the parts of some period in any order, with text between
// them that looks like digits.
func anyPeriodSpec(t *rapid.T) string {
	year := rapid.SampledFrom([]string{"{yyyy}", "{yy}"}).Draw(t, "year")
	parts := append([]string{}, rapid.SampledFrom([][]string{
		{year},
		{year, "{Q}"},
		{year, "{MM}"},
		{year, "{Q}", "{MM}"},
		{year, "{MM}", "{dd}"},
		{year, "{MM}", "{dd}", "{HH}"},
		{"{GGGG}", "{ww}"},
	}).Draw(t, "parts")...)
	number := "{seq:" + rapid.SampledFrom([]string{"1", "1+", "2", "2+", "4+"}).Draw(t, "width") +
		rapid.SampledFrom([]string{"", ":16", ":58", ":crockford32"}).Draw(t, "alphabet") +
		rapid.SampledFrom([]string{"", ":feistel", ":multiply"}).Draw(t, "scrambler") +
		rapid.SampledFrom([]string{"", ":group=1", ":group=3"}).Draw(t, "group") + "}"
	parts = rapid.Permutation(append(parts, number)).Draw(t, "order")
	text := rapid.SampledFrom([]string{"", "", "0", "20", "-", "1-1", "{{"})
	spec := strings.Join(parts, text.Draw(t, "between")) + rapid.SampledFrom([]string{"", "{check}"}).Draw(t, "check") + text.Draw(t, "end")
	if strings.Contains(year, "y") && parts[0] != "{GGGG}" && !strings.Contains(spec, "{GGGG}") {
		spec += rapid.SampledFrom([]string{"", "{fiscal:04}", "{fiscal:10:end}"}).Draw(t, "fiscal")
	}
	return spec
}

// TestUnique draws codes and pairs of period and number: two pairs have the same
// text only if they are the same, and every text gives its pair back.
func TestUnique(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, err := Parse(anyPeriodSpec(t), options())
		if err != nil {
			t.Fatal(err)
		}
		type pair struct {
			p  Period
			id hapax.ID
		}
		seen := map[string]pair{}
		// Few instants and few numbers collide easily if they can.
		instants := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Time {
			day := rapid.SampledFrom([]string{"2002-01-01", "2020-02-02", "2020-02-20", "2022-02-01", "2026-10-25", "2027-01-01", "2020-12-31"}).Draw(t, "day")
			return utc(day + "T00:00:00Z").Add(time.Duration(rapid.IntRange(0, 30*60).Draw(t, "minutes")) * time.Minute)
		}), 2, 6).Draw(t, "instants")
		for _, at := range instants {
			p, err := c.Period(at)
			if err != nil {
				t.Fatal(err)
			}
			for id := range min(c.Max()+1, 120) {
				text, err := c.AppendPeriod(nil, p, id)
				if err != nil {
					t.Fatal(err)
				}
				this := pair{p, id}
				if other, taken := seen[string(text)]; taken && other != this {
					t.Fatalf("%s: %d of %s and %d of %s are %s", c, id, p, other.id, other.p, text)
				}
				seen[string(text)] = this
				if got, back, err := c.DecodePeriod(string(text)); err != nil || got != p || back != id {
					t.Fatalf("%s: %d of %s is %s, which is %d of %s, %v", c, id, p, text, back, got, err)
				}
			}
		}
	})
}

// TestUnitsHaveNames keeps the list of names as long as that of units.
func TestUnitsHaveNames(t *testing.T) {
	for u := None; u <= Hour; u++ {
		if strings.Contains(u.String(), " ") {
			t.Errorf("unit %d has no name", u)
		}
	}
	if got := fmt.Sprint(Hour + 1); got != "unit 7" {
		t.Errorf("got %s", got)
	}
}
