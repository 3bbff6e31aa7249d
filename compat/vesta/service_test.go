package vesta_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta"
	"github.com/hapax-id/hapax/store/memstore"
)

// fixed is a source that issues one number over and over.
type fixed struct {
	id      hapax.ID
	machine int64
}

func (f fixed) Next(context.Context) (hapax.ID, error) { return f.id, nil }
func (f fixed) Machine() int64                         { return f.machine }

func service(t testing.TB, source vesta.Source, opts vesta.Options) *vesta.IDService {
	t.Helper()
	s, err := vesta.New(source, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustLayout(t testing.TB, name string) hapax.Layout {
	t.Helper()
	l, err := hapax.ParseLayout(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A vector is a number that Vesta's own code made of fields.
type vector struct {
	Layout string
	Fields map[string]int64
	ID     string
}

func vectors(t testing.TB) (found []vector) {
	t.Helper()
	data, err := os.ReadFile("../../testdata/layout-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Vectors []vector }
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	for _, v := range all.Vectors {
		if strings.HasPrefix(v.Layout, "vesta-") {
			found = append(found, v)
		}
	}
	return found
}

// typeOf returns the type that a layout is for.
func typeOf(layout string) int64 {
	if strings.HasSuffix(layout, "-min-granularity") {
		return 1
	}
	return 0
}

func TestVectors(t *testing.T) {
	tried := 0
	for _, v := range vectors(t) {
		want, err := hapax.ParseID(v.ID)
		if err != nil {
			t.Fatal(err)
		}
		f := v.Fields
		parts := vesta.Parts{Machine: f["machine"], Seq: f["sequence"], Time: f["time"], GenMethod: f["genMethod"], Type: f["type"], Version: f["version"]}
		if parts.Type != typeOf(v.Layout) {
			continue // it shows what a layout does with bits, and is no number of Vesta's
		}
		tried++
		// The issuer's own layout is once the number's and once the other one.
		for _, own := range vesta.Layouts() {
			if strings.Contains(own, "legacy") != strings.Contains(v.Layout, "legacy") {
				continue
			}
			s := service(t, fixed{}, vesta.Options{Layout: own})
			if got, err := s.ExpID(want); err != nil || got != parts {
				t.Errorf("%s explained by an issuer of %s: %+v, %v; want %+v", v.ID, own, got, err, parts)
			}
			got, err := s.MakeID(parts.Version, parts.Type, parts.GenMethod, parts.Time, parts.Seq, parts.Machine)
			if err != nil || got != want {
				t.Errorf("made by an issuer of %s: %d, %v; want %s", own, got, err, v.ID)
			}
		}
	}
	if tried < 12 {
		t.Errorf("tried %d vectors only", tried)
	}
}

// TestMakeID has the number of Vesta's guide, whose machine and time were swapped on
// the way: it printed 2305844108284681216 for these fields.
func TestMakeID(t *testing.T) {
	s := service(t, fixed{machine: 1021}, vesta.Options{}).Via(vesta.REST)
	for _, values := range [][]int64{
		{94990103, 0},
		{94990103, 0, 1021},
		{2, 94990103, 0, 1021},
		{0, 2, 94990103, 0, 1021},
		{0, 0, 2, 94990103, 0, 1021},
	} {
		if got, err := s.MakeID(values...); err != nil || got != 2407837855670862845 {
			t.Errorf("MakeID(%v): %d, %v; want 2407837855670862845", values, got, err)
		}
	}
}

func TestMakeIDRanges(t *testing.T) {
	s := service(t, fixed{machine: 3}, vesta.Options{})
	for name, c := range map[string]struct {
		values []int64
		field  string
		cause  error
	}{
		"none":             {nil, "makeId", hapax.ErrInvalidArgument},
		"one":              {[]int64{1}, "makeId", hapax.ErrInvalidArgument},
		"seven":            {make([]int64, 7), "makeId", hapax.ErrInvalidArgument},
		"machine":          {[]int64{1, 1, 1024}, "machine", hapax.ErrFieldRange},
		"machine below":    {[]int64{1, 1, -1}, "machine", hapax.ErrFieldRange},
		"seq, max-peak":    {[]int64{0, 0, 1, 1 << 20, 1}, "seq", hapax.ErrFieldRange},
		"seq, fine":        {[]int64{1, 0, 1, 1 << 10, 1}, "seq", hapax.ErrFieldRange},
		"time, max-peak":   {[]int64{0, 0, 1 << 30, 1, 1}, "time", hapax.ErrFieldRange},
		"time, fine":       {[]int64{1, 0, 1 << 40, 1, 1}, "time", hapax.ErrFieldRange},
		"time below":       {[]int64{-1, 1}, "time", hapax.ErrFieldRange},
		"genMethod":        {[]int64{4, 1, 1, 1}, "genMethod", hapax.ErrFieldRange},
		"type":             {[]int64{2, 0, 1, 1, 1}, "type", hapax.ErrFieldRange},
		"type below":       {[]int64{-1, 0, 1, 1, 1}, "type", hapax.ErrFieldRange},
		"version":          {[]int64{2, 0, 0, 1, 1, 1}, "version", hapax.ErrFieldRange},
		"smallest machine": {[]int64{1, 1, -1 << 63}, "machine", hapax.ErrFieldRange},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := s.MakeID(c.values...)
			v, ok := errors.AsType[*hapax.ValueError](err)
			if !ok || v.Field != c.field || !errors.Is(err, c.cause) || id != 0 {
				t.Errorf("got %d, %v; want an error of %s that is %v", id, err, c.field, c.cause)
			}
		})
	}
	for name, fields := range map[string]hapax.Fields{
		"no time": {{Name: "seq", Value: 1}},
		"no seq":  {{Name: "time", Value: 1}},
		"twice":   {{Name: "time", Value: 1}, {Name: "seq", Value: 1}, {Name: "seq", Value: 1}},
		"unknown": {{Name: "time", Value: 1}, {Name: "seq", Value: 1}, {Name: "worker", Value: 1}},
	} {
		if _, err := s.MakeFields(fields); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v; want ErrInvalidArgument", name, err)
		}
	}
}

func TestTransTime(t *testing.T) {
	peak := service(t, fixed{}, vesta.Options{})
	fine := service(t, fixed{}, vesta.Options{Layout: hapax.LayoutVestaLegacyMinGranularity})
	for _, c := range []struct {
		s     *vesta.IDService
		value int64
		want  string // empty: out of range
	}{
		{peak, 0, "2014-12-31T16:00:00Z"},
		{peak, 12758739, "2015-05-28T08:05:39Z"},
		{fine, 12758739123, "2015-05-28T08:05:39.123Z"},
		{peak, 1<<30 - 1, "2049-01-09T05:37:03Z"},
		{peak, 1 << 30, "2049-01-09T05:37:04Z"},
		{peak, -1, "2014-12-31T15:59:59Z"},
		{fine, -1, "2014-12-31T15:59:59.999Z"},
		{peak, 1 << 62, ""},
		{fine, -1 << 62, ""},
	} {
		got, err := c.s.TransTime(c.value)
		switch {
		case c.want == "" && !errors.Is(err, hapax.ErrFieldRange):
			t.Errorf("%d: %v, %v; want ErrFieldRange", c.value, got, err)
		case c.want != "" && (err != nil || got.UTC().Format(time.RFC3339Nano) != c.want):
			t.Errorf("%d: %v, %v; want %s", c.value, got, err, c.want)
		}
	}
}

// TestOtherLayouts: a Vesta with an IdMeta of its own has its layout, and one without
// Vesta's constant fields has none of them.
func TestOtherLayouts(t *testing.T) {
	const meta = "version:1,type:1,genMethod:2,time:30,sequence:14,machine:16,unit=1s,epoch=2014-12-31T16:00:00Z"
	s := service(t, fixed{id: 5<<30 | 3<<16 | 40000, machine: 40000}, vesta.Options{Layout: meta, Version: 1}).Via(vesta.REST)
	id, err := s.GenID(t.Context())
	want := vesta.Parts{Machine: 40000, Seq: 3, Time: 5, GenMethod: 2, Version: 1}
	if p, errParse := s.ExpID(id); err != nil || errParse != nil || p != want {
		t.Errorf("%d is %+v, %v, %v; want %+v", id, p, err, errParse, want)
	}
	if made, err := s.MakeID(1, 0, 2, 5, 3, 40000); made != id || err != nil {
		t.Errorf("made %d, %v; want %d", made, err, id)
	}
	if _, err := s.MakeID(5, 1<<14); !errors.Is(err, hapax.ErrFieldRange) {
		t.Errorf("a sequence beyond 14 bits: %v", err)
	}
	fine := service(t, fixed{id: 1}, vesta.Options{Layout: strings.Replace(meta, "1s", "1ms", 1)})
	if c := fine.Constants(); c[vesta.FieldType] != 1 || c[vesta.FieldVersion] != 0 {
		t.Errorf("in milliseconds the constants are %v; want type 1", c)
	}
	plain := service(t, fixed{id: 7<<22 | 9<<12 | 4, machine: 9}, vesta.Options{Layout: hapax.LayoutLeaf}).Via(vesta.REST)
	id, err = plain.GenID(t.Context())
	if p, errParse := plain.ExpID(id); id != 7<<22|9<<12|4 || err != nil || errParse != nil || p != (vesta.Parts{Machine: 9, Seq: 4, Time: 7}) {
		t.Errorf("in Leaf's layout: %d is %+v, %v, %v", id, p, err, errParse)
	}
	if made, err := plain.MakeID(7, 4); made != id || err != nil {
		t.Errorf("made %d, %v; want %d", made, err, id)
	}
	for name, o := range map[string]vesta.Options{
		"no layout":         {Layout: "round"},
		"version not there": {Layout: hapax.LayoutLeaf, Version: 1},
		"method not there":  {Layout: hapax.LayoutLeaf, GenMethod: new(vesta.REST)},
	} {
		if _, err := vesta.New(fixed{}, o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestTrace: every number that is issued is told of, as it is issued.
func TestTrace(t *testing.T) {
	var told []hapax.ID
	var parts vesta.Parts
	s := service(t, fixed{id: 1<<10 | 7, machine: 7}, vesta.Options{Trace: func(id hapax.ID, p vesta.Parts) { told, parts = append(told, id), p }}).Via(vesta.REST)
	id, err := s.GenID(t.Context())
	if err != nil || len(told) != 1 || told[0] != id || parts != (vesta.Parts{Machine: 7, Seq: 1, GenMethod: 2}) {
		t.Errorf("%d, %v: told of %v, %+v", id, err, told, parts)
	}
}

func TestConstantFields(t *testing.T) {
	three := vesta.Method(3)
	source := fixed{id: -1 << 59, machine: 7} // four bits that are not to show
	for name, c := range map[string]struct {
		opts vesta.Options
		via  vesta.Method
		want vesta.Parts
	}{
		"embedded":    {vesta.Options{}, vesta.Embedded, vesta.Parts{}},
		"central":     {vesta.Options{}, vesta.CentralServer, vesta.Parts{GenMethod: 1}},
		"REST":        {vesta.Options{}, vesta.REST, vesta.Parts{GenMethod: 2}},
		"fixed":       {vesta.Options{GenMethod: &three}, vesta.REST, vesta.Parts{GenMethod: 3}},
		"type":        {vesta.Options{Layout: hapax.LayoutVestaMinGranularity}, vesta.REST, vesta.Parts{Type: 1, GenMethod: 2}},
		"version":     {vesta.Options{Version: 1}, vesta.REST, vesta.Parts{Version: 1, GenMethod: 2}},
		"legacy type": {vesta.Options{Layout: hapax.LayoutVestaLegacyMinGranularity}, vesta.CentralServer, vesta.Parts{Type: 1, GenMethod: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := service(t, source, c.opts).Via(c.via)
			id, err := s.GenID(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.ExpID(id)
			if got.Version != c.want.Version || got.Type != c.want.Type || got.GenMethod != c.want.GenMethod || err != nil {
				t.Errorf("%+v, %v; want the constants of %+v", got, err, c.want)
			}
			if (id < 0) != (c.want.Version == 1) {
				t.Errorf("version %d made %d", c.want.Version, id)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	four := vesta.Method(4)
	for name, opts := range map[string]vesta.Options{
		"layout":    {Layout: "round"},
		"version":   {Version: 2},
		"genMethod": {GenMethod: &four},
	} {
		var v *hapax.ValueError
		if _, err := vesta.New(fixed{}, opts); !errors.As(err, &v) || v.Field != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPublishingIsInjective shows that numbers which differ in time, sequence or
// machine stay apart, however each is published, and that spending one bit more on
// constants is caught.
func TestPublishingIsInjective(t *testing.T) {
	honest := func(id hapax.ID) hapax.ID { return id }
	for _, name := range vesta.Layouts() {
		if a, b, found := collision(t, name, honest); found {
			t.Errorf("%s: the numbers %d and %d can be published as one", name, a, b)
		}
		for bit := range 60 {
			broken := func(id hapax.ID) hapax.ID { return id &^ (1 << bit) }
			if _, _, found := collision(t, name, broken); !found {
				t.Errorf("%s: not caught: bit %d is lost", name, bit)
			}
		}
	}
}

// collision looks for two numbers of a layout that differ below the constants and
// can be published as the same. Each field is every power of two, as well as 0.
func collision(t *testing.T, layout string, change func(hapax.ID) hapax.ID) (a, b hapax.ID, found bool) {
	t.Helper()
	from := map[hapax.ID]hapax.ID{}
	for own := range hapax.ID(1 << 4) { // what the issuer has in the four bits
		for bit := -1; bit < 60; bit++ {
			base := hapax.ID(0)
			if bit >= 0 {
				base = 1 << bit
			}
			for method := range vesta.Method(4) {
				s := service(t, fixed{id: own<<60 | base}, vesta.Options{Layout: layout, Version: int64(own & 1)}).Via(method)
				id, err := s.GenID(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if earlier, seen := from[change(id)]; seen && earlier != base {
					return earlier, base, true
				}
				from[change(id)] = base
			}
		}
	}
	return 0, 0, false
}

// TestOneIssuerBehindAll publishes the numbers of one issuer in all ways at once.
func TestOneIssuerBehindAll(t *testing.T) {
	s, err := hapax.NewSnowflake(t.Context(), memstore.New(), hapax.SnowflakeOptions{
		Layout: mustLayout(t, hapax.LayoutVestaMinGranularity), Workers: hapax.WorkerRange{Lo: 924, Hi: 925},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.WithoutCancel(t.Context()))
	embedded := service(t, vesta.FromSnowflake(s), vesta.Options{Layout: hapax.LayoutVestaMinGranularity})
	const each = 2000
	ids := make(chan hapax.ID, 3*each)
	for _, m := range []vesta.Method{vesta.Embedded, vesta.CentralServer, vesta.REST} {
		go func() {
			via := embedded.Via(m)
			for range each {
				id, err := via.GenID(t.Context())
				p, explained := via.ExpID(id)
				if err != nil || explained != nil || p.GenMethod != int64(m) || p.Machine != 924 || p.Type != 1 {
					t.Errorf("by method %d: %+v, %v, %v", m, p, err, explained)
				}
				ids <- id & (1<<60 - 1)
			}
		}()
	}
	seen := map[hapax.ID]bool{}
	for range 3 * each {
		id := <-ids
		if seen[id] {
			t.Fatalf("%d twice", id)
		}
		seen[id] = true
	}
}
