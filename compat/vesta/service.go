// Package vesta stands in for Vesta's id-generator: its IdService over this
// library's engine, its two generations of layouts, and its ways of getting a
// machine ID. The packages below it speak Vesta's protocols: dubbo is its central
// server, rest its HTTP interface.
//
// An IDService publishes the numbers of an issuer. Version, type and publishing
// method are constants: they stand in the four highest bits, and tell how a number
// was published. Two numbers of one issuer differ in time, sequence or machine, so
// that they differ whatever those four bits are, and one issuer can stand behind
// several services at once:
//
//	issuer --+-- IDService, embedded (0)
//	         +-- Via(CentralServer) (1) --- Dubbo
//	         +-- Via(REST) (2) ------------ HTTP
package vesta

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
)

// A Method is how a number was published: the field genMethod.
type Method int64

// The publishing methods. The value 3 is reserved.
const (
	Embedded      Method = 0
	CentralServer Method = 1
	REST          Method = 2
)

// Names of the fields as Vesta's interfaces have them. They are also those of the
// layouts, but for the sequence.
const (
	FieldVersion   = "version"
	FieldType      = "type"
	FieldGenMethod = "genMethod"
	FieldMachine   = hapax.FieldMachine
	FieldTime      = hapax.FieldTime
	FieldSeq       = "seq"
)

// typeShift is where the field type stands in every layout of Vesta's.
const typeShift = 62

// generations are Vesta's layouts, older generation first; the index within one is
// the type.
var generations = [][2]string{
	{hapax.LayoutVestaLegacyMaxPeak, hapax.LayoutVestaLegacyMinGranularity},
	{hapax.LayoutVestaMaxPeak, hapax.LayoutVestaMinGranularity},
}

// A Source issues numbers of one layout. No two of its numbers agree in time, sequence and
// machine; what their other fields are does not matter. FromSnowflake makes one of an
// embedded issuer.
type Source interface {
	Next(ctx context.Context) (hapax.ID, error)
	// Machine returns the machine ID that numbers are issued with now.
	Machine() int64
}

type snowflake struct{ *hapax.Snowflake }

// FromSnowflake returns the source that issues with s.
func FromSnowflake(s *hapax.Snowflake) Source { return snowflake{s} }

// Machine implements Source.
func (s snowflake) Machine() int64 { return s.Stats().Worker }

// Options tune an IDService. The zero value suits the defaults of Vesta.
type Options struct {
	// Layout is the source's layout: the name of one of Vesta's, "vesta-max-peak" (the
	// default), "vesta-min-granularity", or one of the two that begin with
	// "vesta-legacy-"; or any other, by its name or as a spec, for a Vesta with an IdMeta
	// of its own. The field type, where there is one, follows from it: 1 where a tick is
	// shorter than a second. Fields that a layout lacks count as 0.
	Layout string

	// Version is the field version of every number: 0 (the default), or 1, which
	// makes numbers negative.
	Version int64

	// GenMethod fixes the publishing method. By default it is set by how the request
	// came in.
	GenMethod *Method

	// Trace, if set, is told of every number that is issued.
	Trace func(hapax.ID, Parts)
}

// An IDService is Vesta's IdService. Its methods are safe for concurrent use.
type IDService struct {
	source  Source
	layouts [2]hapax.Layout // by type; the same one twice if it is not one of Vesta's
	typ     int64
	version int64
	method  Method
	fixed   bool // the method is fixed by a setting
	trace   func(hapax.ID, Parts)

	constants int64 // the bits of the fields that are the service's
	bits      int64 // their values
}

// New returns a service that publishes the numbers of a source as embedded ones.
// Errors are a *hapax.ValueError.
func New(source Source, opts Options) (*IDService, error) {
	s := &IDService{source: source, version: opts.Version, trace: opts.Trace}
	if err := s.read(cmp.Or(opts.Layout, hapax.LayoutVestaMaxPeak)); err != nil {
		return nil, err
	}
	if opts.GenMethod != nil {
		s.method, s.fixed = *opts.GenMethod, true
	}
	for _, f := range []struct {
		name  string
		value int64
	}{{FieldVersion, s.version}, {FieldGenMethod, int64(s.method)}} {
		field, _ := s.field(f.name)
		if f.value < 0 || f.value > field.Max {
			return nil, &hapax.ValueError{Field: f.name, Value: f.value, Allowed: fmt.Sprintf("0 to %d", field.Max), Err: hapax.ErrFieldRange}
		}
	}
	s.publish()
	return s, nil
}

// read finds out about the layout.
func (s *IDService) read(text string) error {
	for _, names := range generations {
		if typ := slices.Index(names[:], text); typ >= 0 {
			s.typ = int64(typ)
			for i, name := range names {
				l, err := hapax.ParseLayout(name)
				if err != nil {
					return err
				}
				s.layouts[i] = l
			}
			return nil
		}
	}
	l, err := hapax.ParseLayout(text)
	if err != nil {
		return err
	}
	s.layouts = [2]hapax.Layout{l, l}
	if f, ok := s.field(FieldType); ok && f.Max > 0 && l.Unit() < time.Second {
		s.typ = 1
	}
	return nil
}

// field returns a field of the layout, by Vesta's name; false if it has none.
func (s *IDService) field(name string) (hapax.BitField, bool) {
	return fieldOf(s.layouts[s.typ], name)
}

func fieldOf(l hapax.Layout, name string) (hapax.BitField, bool) {
	for f := range l.Fields() {
		if f.Name == nameIn(l, name) {
			return f, true
		}
	}
	return hapax.BitField{}, false
}

// nameIn returns how a layout calls a field of Vesta's.
func nameIn(l hapax.Layout, name string) string {
	switch name {
	case FieldSeq:
		return hapax.FieldSequence
	case FieldMachine:
		return cmp.Or(l.WorkerField(), name)
	}
	return name
}

// Layouts returns the names of Vesta's layouts.
func Layouts() []string {
	var names []string
	for _, g := range slices.Backward(generations) {
		names = append(names, g[:]...)
	}
	return names
}

// publish works out the bits that numbers get from the service.
func (s *IDService) publish() {
	s.constants, s.bits = 0, 0
	for name, value := range map[string]int64{FieldVersion: s.version, FieldType: s.typ, FieldGenMethod: int64(s.method)} {
		if f, ok := s.field(name); ok {
			s.constants |= f.Max << f.Shift
			s.bits |= value << f.Shift
		}
	}
}

// Constants returns the values of the fields version and type, as far as the layout has
// them: those of numbers that are not asked for in one of Vesta's ways.
func (s *IDService) Constants() map[string]int64 {
	all := map[string]int64{}
	for name, value := range map[string]int64{FieldVersion: s.version, FieldType: s.typ} {
		if _, ok := s.field(name); ok {
			all[name] = value
		}
	}
	return all
}

// Via returns the service for requests that come in by a method, which the numbers
// carry unless Options.GenMethod fixes another. Both issue from one source.
func (s *IDService) Via(m Method) *IDService {
	v := *s
	if f, ok := s.field(FieldGenMethod); ok && !v.fixed {
		v.method = Method(int64(m) & f.Max)
		v.publish()
	}
	return &v
}

// GenID issues a number. The context is consulted only when the call must wait.
// Errors are those of the source.
func (s *IDService) GenID(ctx context.Context) (hapax.ID, error) {
	id, err := s.source.Next(ctx)
	if err != nil {
		return 0, err
	}
	id = id&^hapax.ID(s.constants) | hapax.ID(s.bits)
	if s.trace != nil {
		if p, err := s.ExpID(id); err == nil {
			s.trace(id, p)
		}
	}
	return id, nil
}

// Parts are the fields of a number, in the order of Vesta's class Id.
type Parts struct {
	Machine   int64 `json:"machine"`
	Seq       int64 `json:"seq"`
	Time      int64 `json:"time"`
	GenMethod int64 `json:"genMethod"`
	Type      int64 `json:"type"`
	Version   int64 `json:"version"`
}

// ExpID explains a number. The layout is the one of this service's generation that
// the number's own type bit names. Every number of Vesta's layouts has an explanation; in
// another one that leaves bits unused, a number with such a bit is a *hapax.ValueError.
func (s *IDService) ExpID(id hapax.ID) (Parts, error) {
	layout := s.layouts[uint64(id)>>typeShift&1]
	fields, err := layout.Parse(id)
	if err != nil {
		return Parts{}, err
	}
	var p Parts
	for _, f := range fields {
		switch f.Name {
		case layout.WorkerField():
			p.Machine = f.Value
		case hapax.FieldSequence:
			p.Seq = f.Value
		case FieldTime:
			p.Time = f.Value
		case FieldGenMethod:
			p.GenMethod = f.Value
		case FieldType:
			p.Type = f.Value
		case FieldVersion:
			p.Version = f.Value
		}
	}
	return p, nil
}

// forms are the orders in which makeId takes its values, by their number.
var forms = map[int][]string{
	2: {FieldTime, FieldSeq},
	3: {FieldTime, FieldSeq, FieldMachine},
	4: {FieldGenMethod, FieldTime, FieldSeq, FieldMachine},
	5: {FieldType, FieldGenMethod, FieldTime, FieldSeq, FieldMachine},
	6: {FieldVersion, FieldType, FieldGenMethod, FieldTime, FieldSeq, FieldMachine},
}

// MakeID composes a number of two to six values, as the overloads of makeId do:
//
//	time, seq
//	time, seq, machine
//	genMethod, time, seq, machine
//	type, genMethod, time, seq, machine
//	version, type, genMethod, time, seq, machine
//
// A field that is not given has this service's own value. Errors are those of
// MakeFields.
func (s *IDService) MakeID(values ...int64) (hapax.ID, error) {
	form, ok := forms[len(values)]
	if !ok {
		return 0, &hapax.ValueError{Field: "makeId", Value: fmt.Sprintf("(%d values)", len(values)), Allowed: "2 to 6 values", Err: hapax.ErrInvalidArgument}
	}
	fields := make(hapax.Fields, len(values))
	for i, v := range values {
		fields[i] = hapax.Field{Name: form[i], Value: v}
	}
	return s.MakeFields(fields)
}

// MakeFields composes a number of fields by their names; time and seq are required,
// and a field that is not given has this service's own value. The layout is that of
// the type. A *hapax.ValueError tells of a field that is missing, unknown, given
// twice (hapax.ErrInvalidArgument) or out of its range (hapax.ErrFieldRange).
func (s *IDService) MakeFields(fields hapax.Fields) (hapax.ID, error) {
	all := slices.Clone(fields)
	for _, own := range []struct {
		name  string
		value func() int64
	}{
		{FieldVersion, func() int64 { return s.version }},
		{FieldType, func() int64 { return s.typ }},
		{FieldGenMethod, func() int64 { return int64(s.method) }},
		{FieldMachine, s.source.Machine},
	} {
		if _, given := fields.Get(own.name); !given {
			all = append(all, hapax.Field{Name: own.name, Value: own.value()})
		}
	}
	typ, _ := all.Get(FieldType)
	layout := s.layouts[min(max(typ, 0), 1)]                // Compose refuses other types
	all = slices.DeleteFunc(all, func(f hapax.Field) bool { // a field that the layout lacks is 0
		_, there := fieldOf(layout, f.Name)
		return !there && f.Value == 0 && slices.Contains(forms[6], f.Name)
	})
	for i := range all {
		all[i].Name = nameIn(layout, all[i].Name)
	}
	id, err := layout.Compose(all)
	if v, ok := errors.AsType[*hapax.ValueError](err); ok {
		named := *v
		switch named.Field {
		case hapax.FieldSequence:
			named.Field = FieldSeq
		case layout.WorkerField():
			named.Field = FieldMachine
		}
		return 0, &named
	}
	return id, err
}

// Raw returns the bits of a field where each of them is set, as Vesta has them for a value
// of -1 that it takes as it is: those of the fields above are set, too. ok is false for a
// field that the layout lacks.
func (s *IDService) Raw(name string) (bits hapax.ID, ok bool) {
	f, ok := s.field(name)
	return -1 << f.Shift, ok
}

// TransTime returns the instant of a value of the field time, in the layout of this
// service. As with Vesta that may be any: -1 is the tick before the epoch. A
// *hapax.ValueError matches hapax.ErrFieldRange for one that no clock can show.
func (s *IDService) TransTime(value int64) (time.Time, error) {
	layout := s.layouts[s.typ]
	if most := maxMillis / layout.Unit().Milliseconds(); value < -most || value > most {
		return time.Time{}, &hapax.ValueError{Field: FieldTime, Value: value, Allowed: fmt.Sprintf("%d to %d", -most, most), Err: hapax.ErrFieldRange}
	}
	return time.UnixMilli(layout.Epoch().UnixMilli() + value*layout.Unit().Milliseconds()), nil
}

// maxMillis is how far, in milliseconds, an instant may lie from the epoch: longer than
// years are written with four digits.
const maxMillis = 1 << 50
