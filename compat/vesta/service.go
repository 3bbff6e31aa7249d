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
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// The constant fields stand at the same place in every layout of Vesta's.
const (
	versionShift = 63
	typeShift    = 62
	methodShift  = 60
)

// generations are Vesta's layouts, older generation first; the index within one is
// the type.
var generations = [][2]string{
	{hapax.LayoutVestaLegacyMaxPeak, hapax.LayoutVestaLegacyMinGranularity},
	{hapax.LayoutVestaMaxPeak, hapax.LayoutVestaMinGranularity},
}

// A Source issues numbers of one of Vesta's layouts. No two of its numbers agree in
// time, sequence and machine; what their other bits are does not matter. FromSnowflake
// makes one of an embedded issuer.
type Source interface {
	Next(ctx context.Context) (hapax.ID, error)
	// Machine returns the machine ID that numbers are issued with now.
	Machine() int64
}

type snowflake struct{ *hapax.Snowflake }

// FromSnowflake returns the source that issues with s, whose layout is one of Vesta's.
func FromSnowflake(s *hapax.Snowflake) Source { return snowflake{s} }

// Machine implements Source.
func (s snowflake) Machine() int64 { return s.Stats().Worker }

// Options tune an IDService. The zero value suits the defaults of Vesta.
type Options struct {
	// Layout is the source's layout, by its name: "vesta-max-peak" (the default),
	// "vesta-min-granularity", or one of the two that begin with "vesta-legacy-".
	// The field type follows from it.
	Layout string

	// Version is the field version of every number: 0 (the default), or 1, which
	// makes numbers negative.
	Version int64

	// GenMethod fixes the publishing method. By default it is set by how the request
	// came in.
	GenMethod *Method
}

// An IDService is Vesta's IdService. Its methods are safe for concurrent use.
type IDService struct {
	source  Source
	layouts [2]hapax.Layout // by type
	typ     int64
	version int64
	method  Method
	fixed   bool // the method is fixed by a setting
	bits    int64
}

// New returns a service that publishes the numbers of a source as embedded ones.
// Errors are a *hapax.ValueError.
func New(source Source, opts Options) (*IDService, error) {
	if opts.Layout == "" {
		opts.Layout = hapax.LayoutVestaMaxPeak
	}
	s := &IDService{source: source, version: opts.Version, typ: -1}
	for _, names := range generations {
		typ := slices.Index(names[:], opts.Layout)
		if typ < 0 {
			continue
		}
		s.typ = int64(typ)
		for i, name := range names {
			l, err := hapax.ParseLayout(name)
			if err != nil {
				return nil, err
			}
			s.layouts[i] = l
		}
	}
	if s.typ < 0 {
		return nil, &hapax.ValueError{Field: "layout", Value: opts.Layout, Allowed: "one of " + strings.Join(Layouts(), ", "), Err: hapax.ErrInvalidLayout}
	}
	if opts.GenMethod != nil {
		s.method, s.fixed = *opts.GenMethod, true
	}
	for _, f := range []struct {
		name       string
		value, max int64
	}{{FieldVersion, s.version, 1}, {FieldGenMethod, int64(s.method), 3}} {
		if f.value < 0 || f.value > f.max {
			return nil, &hapax.ValueError{Field: f.name, Value: f.value, Allowed: fmt.Sprintf("0 to %d", f.max), Err: hapax.ErrFieldRange}
		}
	}
	s.bits = s.constantBits()
	return s, nil
}

// Layouts returns the names of Vesta's layouts.
func Layouts() []string {
	var names []string
	for _, g := range slices.Backward(generations) {
		names = append(names, g[:]...)
	}
	return names
}

func (s *IDService) constantBits() int64 {
	return s.version<<versionShift | s.typ<<typeShift | int64(s.method)<<methodShift
}

// Via returns the service for requests that come in by a method, which the numbers
// carry unless Options.GenMethod fixes another. Both issue from one source.
func (s *IDService) Via(m Method) *IDService {
	v := *s
	if !v.fixed {
		v.method = m & 3
		v.bits = v.constantBits()
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
	return id&^(-1<<methodShift) | hapax.ID(s.bits), nil
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
// the number's own type bit names. Every number has an explanation.
func (s *IDService) ExpID(id hapax.ID) (Parts, error) {
	fields, err := s.layouts[uint64(id)>>typeShift&1].Parse(id)
	if err != nil {
		return Parts{}, err
	}
	var p Parts
	for _, f := range fields {
		switch f.Name {
		case FieldMachine:
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
	layout := s.layouts[min(max(typ, 0), 1)] // Compose refuses other types
	for i := range all {
		if all[i].Name == FieldSeq {
			all[i].Name = hapax.FieldSequence
		}
	}
	id, err := layout.Compose(all)
	if v, ok := errors.AsType[*hapax.ValueError](err); ok && v.Field == hapax.FieldSequence {
		named := *v
		named.Field = FieldSeq
		return 0, &named
	}
	return id, err
}

// TransTime returns the instant of a value of the field time, in the layout of this
// service. A *hapax.ValueError matches hapax.ErrFieldRange.
func (s *IDService) TransTime(value int64) (time.Time, error) {
	layout := s.layouts[s.typ]
	if value < 0 || value >= layout.EndTick() {
		return time.Time{}, &hapax.ValueError{Field: FieldTime, Value: value, Allowed: fmt.Sprintf("0 to %d", layout.EndTick()-1), Err: hapax.ErrFieldRange}
	}
	return layout.TimeOf(value), nil
}
