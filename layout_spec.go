package hapax

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseLayout returns the built-in layout of that name, or the layout that a
// spec describes. A spec lists the fields from the highest bit down as
// name:bits, and the unit and the epoch, separated by commas:
//
//	time:41,worker:10,sequence:12,unit=1ms,epoch=2010-11-04T01:42:54.657Z
//
// There are 2 to 8 fields of up to 64 bits in all, time and sequence take up to
// 62 of them, and a name is a letter and up to 31 letters, digits and
// underscores. The unit is 1ms to 1h in whole milliseconds, by default 1ms. The
// epoch is RFC 3339, or Unix time with its unit, such as 1577836800s or
// 1577836800000ms. Errors are a [*ValueError] that matches [ErrInvalidLayout].
func ParseLayout(nameOrSpec string) (Layout, error) {
	for _, b := range builtins {
		if b.name == nameOrSpec {
			return b.layout, nil
		}
	}
	if !strings.Contains(nameOrSpec, ":") {
		return Layout{}, layoutError("layout", nameOrSpec,
			"one of "+strings.Join(Layouts(), ", ")+", or a spec such as time:41,worker:10,sequence:12,unit=1ms,epoch=2020-01-01T00:00:00Z")
	}
	return parseSpec(nameOrSpec)
}

func parseSpec(spec string) (Layout, error) {
	if len(spec) > maxLayoutBytes {
		return Layout{}, layoutError("layout", spec, fmt.Sprintf("at most %d bytes", maxLayoutBytes))
	}
	l := Layout{time: -1, sequence: -1, worker: -1}
	settings := map[string]string{}
	for item := range strings.SplitSeq(spec, ",") {
		item = strings.TrimSpace(item)
		key, value, isSetting := strings.Cut(item, "=")
		if !isSetting {
			if err := l.addField(item); err != nil {
				return Layout{}, err
			}
			continue
		}
		if _, twice := settings[key]; twice || key != "unit" && key != "epoch" {
			return Layout{}, layoutError("layout setting", item, "unit=… and epoch=…, each once")
		}
		settings[key] = value
	}
	if err := l.place(spec); err != nil {
		return Layout{}, err
	}
	if err := l.setClock(settings); err != nil {
		return Layout{}, err
	}
	// The canonical form is what stores keep, and it may be longer than the text that was given.
	if s := l.String(); len(s) > maxLayoutBytes {
		return Layout{}, layoutError("layout", s, fmt.Sprintf("at most %d bytes in its canonical form", maxLayoutBytes))
	}
	return l, nil
}

// addField adds the next lower field, without its position.
func (l *Layout) addField(item string) error {
	name, width, _ := strings.Cut(item, ":")
	if !isFieldName(name) {
		return layoutError("layout field", item, "name:bits, the name a letter and up to 31 letters, digits and underscores")
	}
	bits, err := strconv.ParseUint(width, 10, 8)
	if err != nil || bits < 1 || bits > maxCursorBits {
		return layoutError("layout field", item, fmt.Sprintf("name:bits with 1 to %d bits", maxCursorBits))
	}
	if l.count == maxFields {
		return layoutError("layout field", item, fmt.Sprintf("at most %d fields", maxFields))
	}
	for f := range l.Fields() {
		if f.Name == name {
			return layoutError("layout field", item, "each name once")
		}
	}
	switch name {
	case FieldTime:
		l.time = l.count
	case FieldSequence:
		l.sequence = l.count
	case FieldWorker, FieldMachine:
		if l.worker >= 0 {
			return layoutError("layout field", item, "either worker or machine")
		}
		l.worker = l.count
	}
	l.fields[l.count] = BitField{Name: name, Bits: int(bits), Max: 1<<bits - 1}
	l.count++
	return nil
}

// place gives the fields their positions and checks that together they can
// carry a clock and a sequence.
func (l *Layout) place(spec string) error {
	if l.time < 0 || l.sequence < 0 || l.time > l.sequence {
		return layoutError("layout", spec, "a time field and, below it, a sequence field")
	}
	if l.fields[l.time].Bits+l.fields[l.sequence].Bits > maxCursorBits {
		return layoutError("layout", spec, fmt.Sprintf("at most %d bits for time and sequence together", maxCursorBits))
	}
	shift := 0
	for i := l.count - 1; i >= 0; i-- {
		l.fields[i].Shift = shift
		shift += l.fields[i].Bits
	}
	if shift > 64 {
		return layoutError("layout", spec, "at most 64 bits in all")
	}
	if shift == 64 && l.time == 0 {
		return layoutError("layout", spec, "at most 63 bits when time is the highest field, which may not use the sign bit")
	}
	return nil
}

// setClock sets unit and epoch, and ends time with the year 9999.
func (l *Layout) setClock(settings map[string]string) error {
	unit := time.Millisecond
	if s, ok := settings["unit"]; ok {
		var err error
		if unit, err = time.ParseDuration(s); err != nil || unit < time.Millisecond || unit > maxUnit || unit%time.Millisecond != 0 {
			return layoutError("layout unit", s, "1ms to 1h in whole milliseconds")
		}
	}
	epoch, ok := parseEpoch(settings["epoch"])
	if !ok {
		return layoutError("layout epoch", settings["epoch"], "an instant of the years 1 to 9998 with at most millisecond precision, in RFC 3339, such as 2020-01-01T00:00:00Z, or as Unix time with its unit, such as 1577836800s or 1577836800000ms")
	}
	l.unit, l.epoch = unit.Milliseconds(), epoch
	t := &l.fields[l.time]
	t.Max = min(t.Max, (maxTime-l.epoch)/l.unit-1)
	return nil
}

// parseEpoch reads RFC 3339, or Unix time with its unit. A bare number could be a
// year, seconds or milliseconds, so it is none.
func parseEpoch(s string) (int64, bool) {
	count, scale := s, int64(0)
	if text, ok := strings.CutSuffix(s, "ms"); ok {
		count, scale = text, 1
	} else if text, ok := strings.CutSuffix(s, "s"); ok {
		count, scale = text, 1000
	}
	var ms int64
	if scale > 0 {
		n, err := strconv.ParseInt(count, 10, 64)
		// Before the multiplication, whose overflow could look like a good instant.
		if err != nil || n < minEpoch/scale || n > maxEpoch/scale {
			return 0, false
		}
		ms = n * scale
	} else {
		t, err := time.Parse(time.RFC3339, s)
		if err != nil || t.Nanosecond()%int(time.Millisecond) != 0 {
			return 0, false
		}
		ms = t.UnixMilli()
	}
	return ms, ms >= minEpoch && ms < maxEpoch
}

// formatUnit writes a count of milliseconds in the largest unit that divides
// it.
func formatUnit(ms int64) string {
	for _, u := range []struct {
		ms   int64
		name string
	}{{3_600_000, "h"}, {60_000, "m"}, {1000, "s"}} {
		if ms%u.ms == 0 {
			return strconv.FormatInt(ms/u.ms, 10) + u.name
		}
	}
	return strconv.FormatInt(ms, 10) + "ms"
}

func isFieldName(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || c != '_' && (c < '0' || c > '9')) {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= maxFieldNameBytes
}

func layoutError(field, value, allowed string) error {
	return &ValueError{field, value, allowed, ErrInvalidLayout}
}
