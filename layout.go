package hapax

import (
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"
)

// maxLayoutBytes bounds the text of a layout, as it is given and as it is
// stored.
const maxLayoutBytes = 256

// Names of the fields that mean something to every layout. The worker's field
// is called "worker" or "machine".
const (
	FieldTime     = "time"
	FieldSequence = "sequence"
	FieldWorker   = "worker"
	FieldMachine  = "machine"
)

const (
	maxFields         = 8
	maxFieldNameBytes = 32

	// maxCursorBits keeps two bits of the cursor's word (time and sequence) free,
	// so that adds at the very end of time cannot overflow it.
	maxCursorBits = 62

	maxUnit = time.Hour
)

// The instants that a layout can speak of, in Unix milliseconds: the years 1 to
// 9999, which RFC 3339 can write. An epoch comes a year before the end, so that
// every layout has ticks.
var (
	minEpoch = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	maxEpoch = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	maxTime  = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
)

// A Layout tells how the bits of a snowflake's ID are used: fields from the
// highest bit down, the last one ending at bit 0; an epoch; and the tick, which
// is the unit of the time field.
//
// A layout has one time field; one sequence field, below it, so that IDs
// ascend; and up to one worker field. Any other field, such as a datacentre or a
// type, is a constant of the pool. The sign bit is used if the fields fill all
// 64 bits; the highest is not the time then, so that time never turns an ID
// negative.
//
// Layouts are equal if == says so. The zero value is no layout: its methods
// that return errors return [ErrInvalidLayout].
type Layout struct {
	fields   [maxFields]BitField
	count    int
	time     int   // index in fields
	sequence int   // index in fields
	worker   int   // index in fields, or -1
	unit     int64 // in milliseconds
	epoch    int64 // in Unix milliseconds
}

// A BitField is one field of a layout. Its values are 0 to Max.
type BitField struct {
	Name  string
	Bits  int   // width
	Shift int   // position of its lowest bit
	Max   int64 // the highest value that is allowed
}

// A Field is the value of one field of an ID.
type Field struct {
	Name  string
	Value int64
}

// Fields are the values of an ID's fields.
type Fields []Field

// Get returns the value of the named field, and whether there is one.
func (f Fields) Get(name string) (int64, bool) {
	for _, field := range f {
		if field.Name == name {
			return field.Value, true
		}
	}
	return 0, false
}

// MarshalJSON returns one object with the fields in their order.
func (f Fields) MarshalJSON() ([]byte, error) {
	dst := []byte{'{'}
	for i, field := range f {
		if i > 0 {
			dst = append(dst, ',')
		}
		name, err := json.Marshal(field.Name)
		if err != nil {
			return nil, err
		}
		dst = append(append(dst, name...), ':')
		dst = strconv.AppendInt(dst, field.Value, 10)
	}
	return append(dst, '}'), nil
}

// IsZero reports whether l is no layout.
func (l Layout) IsZero() bool { return l.count == 0 }

// String returns the canonical spec, which [ParseLayout] reads back: the fields
// from the highest bit down with their widths, the unit and the epoch. It is
// what pools are frozen with.
func (l Layout) String() string {
	if l.IsZero() {
		return ""
	}
	var b strings.Builder
	for f := range l.Fields() {
		fmt.Fprintf(&b, "%s:%d,", f.Name, f.Bits)
	}
	fmt.Fprintf(&b, "unit=%s,epoch=%s", formatUnit(l.unit), l.Epoch().Format(time.RFC3339Nano))
	return b.String()
}

// Fields returns the layout's fields from the highest bit down.
func (l Layout) Fields() iter.Seq[BitField] {
	return func(yield func(BitField) bool) {
		for _, f := range l.fields[:l.count] {
			if !yield(f) {
				return
			}
		}
	}
}

// WorkerField returns the name of the worker's field, or "" if there is none.
func (l Layout) WorkerField() string {
	if l.IsZero() || l.worker < 0 {
		return ""
	}
	return l.fields[l.worker].Name
}

// Workers returns how many worker IDs there are, counted from 0. It is 1 for a
// layout without a worker field.
func (l Layout) Workers() int64 {
	if l.WorkerField() == "" {
		return 1
	}
	return l.fields[l.worker].Max + 1
}

// SequenceBits returns the width of the sequence field.
func (l Layout) SequenceBits() int { return l.fields[l.sequence].Bits }

// PerTick returns how many IDs a worker can issue in a tick.
func (l Layout) PerTick() int64 { return 1 << l.SequenceBits() }

// PerSecond returns how many IDs a worker can issue in a second, in the long
// run.
func (l Layout) PerSecond() float64 { return float64(l.PerTick()) / l.Unit().Seconds() }

// Unit returns the length of a tick: 1 ms to 1 h, in whole milliseconds.
func (l Layout) Unit() time.Duration { return time.Duration(l.unit) * time.Millisecond }

// Epoch returns when tick 0 begins.
func (l Layout) Epoch() time.Time { return time.UnixMilli(l.epoch).UTC() }

// EndTick returns the first tick that the time field cannot hold. Time ends
// with the year 9999 in any case.
func (l Layout) EndTick() int64 {
	if l.IsZero() {
		return 0
	}
	return l.fields[l.time].Max + 1
}

// Ends returns the first instant that the time field cannot hold.
func (l Layout) Ends() time.Time { return l.TimeOf(l.EndTick()) }

// TimeOf returns when a tick begins. Ticks outside [0, EndTick()] are taken as
// the nearest one inside.
func (l Layout) TimeOf(tick int64) time.Time {
	tick = min(max(tick, 0), l.EndTick())
	return time.UnixMilli(l.epoch + tick*l.unit).UTC()
}

// TickOf returns the tick that t lies in. It is [ErrFieldRange] before the epoch,
// and [ErrTimeExhausted] when the layout's time has ended.
func (l Layout) TickOf(t time.Time) (int64, error) {
	switch {
	case l.IsZero():
		return 0, errNoLayout()
	case t.Before(l.Epoch()):
		return 0, &ValueError{FieldTime, formatTime(t), "the layout's epoch " + formatTime(l.Epoch()) + " or later", ErrFieldRange}
	case !t.Before(l.Ends()):
		return 0, &ValueError{FieldTime, formatTime(t), "before " + formatTime(l.Ends()) + ", where the layout's time ends", ErrTimeExhausted}
	}
	return (t.UnixMilli() - l.epoch) / l.unit, nil
}

// Compose returns the ID with the given fields. Every field of the layout is
// given once, in any order. A value that does not fit its field is
// [ErrFieldRange]; a field that is unknown, missing or given twice is
// [ErrInvalidArgument].
func (l Layout) Compose(f Fields) (ID, error) {
	if l.IsZero() {
		return 0, errNoLayout()
	}
	var id int64
	var seen [maxFields]bool
	for _, field := range f {
		i, err := l.check(field, &seen)
		if err != nil {
			return 0, err
		}
		id |= field.Value << l.fields[i].Shift
	}
	for i, field := range l.fields[:l.count] {
		if !seen[i] {
			return 0, &ValueError{field.Name, "", allowedValues(field), ErrInvalidArgument}
		}
	}
	return ID(id), nil
}

// Parse returns the fields of an ID in the layout's order, or [ErrInvalidID] if
// the ID cannot be of this layout.
func (l Layout) Parse(id ID) (Fields, error) {
	if l.IsZero() {
		return nil, errNoLayout()
	}
	if bits := l.bits(); bits < 64 && uint64(id)>>bits != 0 {
		return nil, &ValueError{"id", int64(id), fmt.Sprintf("0 to %d in this layout of %d bits", int64(1)<<bits-1, bits), ErrInvalidID}
	}
	fields := make(Fields, l.count)
	for i, f := range l.fields[:l.count] {
		v := int64(uint64(id) >> f.Shift & (1<<f.Bits - 1))
		if v > f.Max {
			return nil, &ValueError{"id", int64(id), "an ID whose time lies before the year 10000", ErrInvalidID}
		}
		fields[i] = Field{f.Name, v}
	}
	return fields, nil
}

// Time returns the beginning of the tick that an ID carries, or [ErrInvalidID] if
// the ID cannot be of this layout.
func (l Layout) Time(id ID) (time.Time, error) {
	fields, err := l.Parse(id)
	if err != nil {
		return time.Time{}, err
	}
	return l.TimeOf(fields[l.time].Value), nil
}

// An encoder turns the cursor of one worker into IDs. The constant fields were
// checked once; the caller keeps the cursor's tick below the layout's EndTick.
type encoder struct {
	base    int64 // the constant fields, in place
	seqUnit int64 // what one number of the sequence adds to the ID
	tickGap int64 // what one tick adds beyond the sequence that it carries over
	seqMask int64
	seqBits uint8
}

// encode returns the ID of a cursor, which is tick << seqBits | sequence. Both
// fields move to their places by one multiplication each, which is quicker than
// shifts by variable amounts; the time lies above the sequence.
func (e *encoder) encode(cursor int64) ID {
	return ID(cursor*e.seqUnit + e.base + (cursor>>(e.seqBits&63))*e.tickGap)
}

// encoder returns the encoder of a worker. Constant fields that are not given
// are 0. Errors are those of Compose.
func (l Layout) encoder(worker int64, constants Fields) (encoder, error) {
	if l.IsZero() {
		return encoder{}, errNoLayout()
	}
	seq := l.fields[l.sequence]
	e := encoder{
		seqMask: seq.Max,
		seqBits: uint8(seq.Bits),
		seqUnit: 1 << seq.Shift,
		tickGap: 1<<l.fields[l.time].Shift - 1<<(seq.Shift+seq.Bits),
	}
	var seen [maxFields]bool
	for _, field := range constants {
		i, err := l.check(field, &seen)
		if err != nil {
			return encoder{}, err
		}
		if i == l.time || i == l.sequence || i == l.worker {
			return encoder{}, &ValueError{"constant field", field.Name, "a field other than time, sequence and worker", ErrInvalidArgument}
		}
		e.base |= field.Value << l.fields[i].Shift
	}
	if worker < 0 || worker >= l.Workers() {
		return encoder{}, &ValueError{FieldWorker, worker, fmt.Sprintf("0 to %d", l.Workers()-1), ErrFieldRange}
	}
	if l.worker >= 0 {
		e.base |= worker << l.fields[l.worker].Shift
	}
	return e, nil
}

// check returns the index of the field that a value is for, after checking that
// the value fits and that the field is seen for the first time.
func (l Layout) check(field Field, seen *[maxFields]bool) (int, error) {
	for i, f := range l.fields[:l.count] {
		switch {
		case f.Name != field.Name:
			continue
		case seen[i]:
			return 0, &ValueError{"field", field.Name, "each field once", ErrInvalidArgument}
		case field.Value < 0 || field.Value > f.Max:
			return 0, &ValueError{f.Name, field.Value, allowedValues(f), ErrFieldRange}
		}
		seen[i] = true
		return i, nil
	}
	names := make([]string, 0, maxFields)
	for f := range l.Fields() {
		names = append(names, f.Name)
	}
	return 0, &ValueError{"field", field.Name, "one of " + strings.Join(names, ", "), ErrInvalidArgument}
}

// bits returns the width of all fields together.
func (l Layout) bits() int { return l.fields[0].Shift + l.fields[0].Bits }

func allowedValues(f BitField) string { return fmt.Sprintf("0 to %d", f.Max) }

func errNoLayout() error {
	return &ValueError{"layout", "", "a built-in name or a spec", ErrInvalidLayout}
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
