package hapax

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func mustLayout(t testing.TB, text string) Layout {
	t.Helper()
	l, err := ParseLayout(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func instant(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

type layoutVectors struct {
	Layouts map[string]struct {
		EpochMS int64    `json:"epoch_ms"`
		UnitMS  int64    `json:"unit_ms"`
		Fields  [][2]any `json:"fields"`
	} `json:"layouts"`
	Vectors []struct {
		Layout string           `json:"layout"`
		Fields map[string]int64 `json:"fields"`
		ID     ID               `json:"id"`
	} `json:"vectors"`
}

func readVectors(t *testing.T) layoutVectors {
	t.Helper()
	data, err := os.ReadFile("testdata/layout-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v layoutVectors
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Layouts) == 0 || len(v.Vectors) == 0 {
		t.Fatal("no vectors")
	}
	return v
}

func TestBuiltinLayouts(t *testing.T) {
	golden := readVectors(t)
	if len(Layouts()) != len(golden.Layouts) {
		t.Errorf("%d built-in layouts, want %d", len(Layouts()), len(golden.Layouts))
	}
	for name, want := range golden.Layouts {
		l := mustLayout(t, name)
		var fields [][2]any
		for f := range l.Fields() {
			fields = append(fields, [2]any{f.Name, float64(f.Bits)})
		}
		if !slices.Equal(fields, want.Fields) {
			t.Errorf("%s: fields are %v, want %v", name, fields, want.Fields)
		}
		if got := l.Epoch().UnixMilli(); got != want.EpochMS {
			t.Errorf("%s: the epoch is %d, want %d", name, got, want.EpochMS)
		}
		if got := l.Unit().Milliseconds(); got != want.UnitMS {
			t.Errorf("%s: the unit is %d ms, want %d", name, got, want.UnitMS)
		}
		if l.Name() != name || mustLayout(t, l.String()) != l {
			t.Errorf("%s: the name is %q, the spec %s", name, l.Name(), l)
		}
	}
}

func TestLayoutVectors(t *testing.T) {
	for _, v := range readVectors(t).Vectors {
		l := mustLayout(t, v.Layout)
		fields, err := l.Parse(v.ID)
		if err != nil {
			t.Errorf("%s: Parse(%d): %v", v.Layout, v.ID, err)
			continue
		}
		got := map[string]int64{}
		for _, f := range fields {
			got[f.Name] = f.Value
		}
		if fmt.Sprint(got) != fmt.Sprint(v.Fields) {
			t.Errorf("%s: Parse(%d) = %v, want %v", v.Layout, v.ID, got, v.Fields)
		}
		rand.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		if id, err := l.Compose(fields); err != nil || id != v.ID {
			t.Errorf("%s: Compose(%v) = %d, %v, want %d", v.Layout, fields, id, err, v.ID)
		}
	}
}

// The ends of time that are known from outside, or stated in docs.
func TestLayoutEnds(t *testing.T) {
	for name, want := range map[string]string{
		LayoutLeaf:                "2080-07-10",
		LayoutUIDGenerator28:      "2024-11-20T13:24:16Z",
		LayoutUIDGenerator29:      "2033-09-24",
		LayoutVestaMaxPeak:        "2049-01-09",
		LayoutVestaMinGranularity: "2049-11-03",
		LayoutCosIDMillisecond:    "2089-08-30",
		LayoutCosIDSecond:         "2088-01-11",
		LayoutJSSafe53:            "2089-09-06",
		"time:61,sequence:1,unit=1h,epoch=0001-01-01T00:00:00Z":  "10000-01-01T00:00:00Z",
		"time:61,sequence:1,unit=1h,epoch=9998-12-31T23:59:59Z":  "9999-12-31T23:59:59Z",
		"time:48,sequence:14,unit=1ms,epoch=0ms":                 "10000-01-01T00:00:00Z",
		"time:10,sequence:14,unit=1s,epoch=1999-12-31T23:59:00Z": "2000-01-01T00:16:04Z",
	} {
		l := mustLayout(t, name)
		end := l.Ends()
		if got := end.Format(time.RFC3339); !strings.HasPrefix(got, want) {
			t.Errorf("%s ends at %s, want %s", name, got, want)
		}
		if _, err := l.TickOf(end); !errors.Is(err, ErrTimeExhausted) {
			t.Errorf("%s: TickOf(Ends()) = %v, want ErrTimeExhausted", name, err)
		}
		if tick, err := l.TickOf(end.Add(-1)); err != nil || tick != l.EndTick()-1 {
			t.Errorf("%s: the last tick is %d, %v, want %d", name, tick, err, l.EndTick()-1)
		}
		if _, err := l.Ends().Add(-l.Unit()).MarshalJSON(); err != nil {
			t.Errorf("%s: the last tick's time cannot be written: %v", name, err)
		}
	}
}

func TestParseLayoutRefuses(t *testing.T) {
	long := strings.Repeat("a", maxFieldNameBytes)
	for name, spec := range map[string]string{
		"empty":                "",
		"unknown name":         "snowflake",
		"name in capitals":     "LEAF",
		"no time":              "worker:10,sequence:12,epoch=0ms",
		"no sequence":          "time:41,worker:10,epoch=0ms",
		"sequence above time":  "sequence:12,time:41,epoch=0ms",
		"no epoch":             "time:41,sequence:12",
		"two times":            "time:41,time:2,sequence:12,epoch=0ms",
		"two sequences":        "time:41,sequence:12,sequence:1,epoch=0ms",
		"two workers":          "time:41,worker:5,machine:5,sequence:12,epoch=0ms",
		"same name":            "time:41,x:1,x:1,sequence:12,epoch=0ms",
		"width 0":              "time:41,worker:0,sequence:12,epoch=0ms",
		"width negative":       "time:41,worker:-1,sequence:12,epoch=0ms",
		"width signed":         "time:41,worker:+1,sequence:12,epoch=0ms",
		"width missing":        "time:41,worker,sequence:12,epoch=0ms",
		"width empty":          "time:41,worker:,sequence:12,epoch=0ms",
		"width fraction":       "time:41,worker:1.5,sequence:12,epoch=0ms",
		"width 63":             "x:63,time:41,sequence:12,epoch=0ms",
		"width 257":            "x:257,time:41,sequence:12,epoch=0ms",
		"width huge":           "x:99999999999999999999,time:41,sequence:12,epoch=0ms",
		"time and sequence 63": "time:41,sequence:22,epoch=0ms",
		"65 bits":              "x:12,time:41,sequence:12,epoch=0ms",
		"time at the sign bit": "time:41,worker:11,sequence:12,epoch=0ms",
		"nine fields":          "a:1,b:1,c:1,d:1,e:1,f:1,g:1,time:20,sequence:2,epoch=0ms",
		"name begins badly":    "time:41,_x:2,sequence:12,epoch=0ms",
		"name with a dash":     "time:41,a-b:2,sequence:12,epoch=0ms",
		"name not ASCII":       "time:41,é:2,sequence:12,epoch=0ms",
		"name too long":        "time:20," + long + "a:2,sequence:12,epoch=0ms",
		"name empty":           "time:41,:2,sequence:12,epoch=0ms",
		"trailing comma":       "time:41,sequence:12,epoch=0ms,",
		"unknown setting":      "time:41,sequence:12,epoch=0ms,zone=UTC",
		"setting in capitals":  "time:41,sequence:12,epoch=0ms,Unit=1s",
		"epoch twice":          "time:41,sequence:12,epoch=0ms,epoch=0ms",
		"unit twice":           "time:41,sequence:12,epoch=0ms,unit=1s,unit=1s",
		"unit empty":           "time:41,sequence:12,epoch=0ms,unit=",
		"unit without a unit":  "time:41,sequence:12,epoch=0ms,unit=1",
		"unit zero":            "time:41,sequence:12,epoch=0ms,unit=0s",
		"unit negative":        "time:41,sequence:12,epoch=0ms,unit=-1s",
		"unit too small":       "time:41,sequence:12,epoch=0ms,unit=999us",
		"unit not whole":       "time:41,sequence:12,epoch=0ms,unit=1500us",
		"unit too large":       "time:41,sequence:12,epoch=0ms,unit=3600001ms",
		"unit overflow":        "time:41,sequence:12,epoch=0ms,unit=9999999999h",
		"epoch empty":          "time:41,sequence:12,epoch=",
		"epoch without a zone": "time:41,sequence:12,epoch=2020-01-01T00:00:00",
		"epoch only a date":    "time:41,sequence:12,epoch=2020-01-01",
		"epoch too precise":    "time:41,sequence:12,epoch=2020-01-01T00:00:00.0001Z",
		"epoch year 0":         "time:41,sequence:12,epoch=0000-12-31T23:59:59Z",
		"epoch year 9999":      "time:41,sequence:12,epoch=9999-01-01T00:00:00Z",
		"epoch a year":         "time:41,sequence:12,epoch=2020",
		"epoch bare seconds":   "time:41,sequence:12,epoch=1577836800",
		"epoch zero":           "time:41,sequence:12,epoch=0",
		"epoch unit alone":     "time:41,sequence:12,epoch=ms",
		"epoch other unit":     "time:41,sequence:12,epoch=1h",
		"epoch seconds over":   "time:41,sequence:12,epoch=9223372036854775s",
		"epoch overflow":       "time:41,sequence:12,epoch=9223372036854775807ms",
		"epoch underflow":      "time:41,sequence:12,epoch=-9223372036854775808ms",
		"too long":             "time:41,sequence:12,epoch=0ms" + strings.Repeat(" ", maxLayoutBytes),
		"too long if canonical": fmt.Sprintf("time:9,sequence:9,a%[1]s:1,b%[1]s:1,c%[1]s:1,d%[1]s:1,e%[1]s:1,f%[1]s:1,epoch=0ms",
			long[2:]),
	} {
		l, err := ParseLayout(spec)
		_, ok := errors.AsType[*ValueError](err)
		if !errors.Is(err, ErrInvalidLayout) || !ok || !l.IsZero() {
			t.Errorf("%s: ParseLayout(%.80q) = %q, %v, want a ValueError with ErrInvalidLayout", name, spec, l, err)
		}
	}
}

func TestParseLayoutCanonical(t *testing.T) {
	for spec, want := range map[string]string{
		"leaf": "time:41,worker:10,sequence:12,unit=1ms,epoch=2010-11-04T01:42:54.657Z",
		"epoch=1288834974657ms,time:41, worker:10 ,sequence:12":             "time:41,worker:10,sequence:12,unit=1ms,epoch=2010-11-04T01:42:54.657Z",
		"time:41,worker:10,sequence:12,epoch=2010-11-04T09:42:54.657+08:00": "time:41,worker:10,sequence:12,unit=1ms,epoch=2010-11-04T01:42:54.657Z",
		"time:30,sequence:2,unit=1500ms,epoch=-1ms":                         "time:30,sequence:2,unit=1500ms,epoch=1969-12-31T23:59:59.999Z",
		"time:30,sequence:2,unit=0.01s,epoch=0ms":                           "time:30,sequence:2,unit=10ms,epoch=1970-01-01T00:00:00Z",
		"time:30,sequence:2,unit=90m,epoch=0ms":                             "",
		"time:30,sequence:2,unit=60m,epoch=0ms":                             "time:30,sequence:2,unit=1h,epoch=1970-01-01T00:00:00Z",
		"time:30,sequence:2,unit=60s,epoch=500ms":                           "time:30,sequence:2,unit=1m,epoch=1970-01-01T00:00:00.5Z",
		"type:1,time:41,datacenter:5,worker:5,sequence:12,epoch=0ms":        "type:1,time:41,datacenter:5,worker:5,sequence:12,unit=1ms,epoch=1970-01-01T00:00:00Z",
		"time:30,sequence:2,epoch=1577836800s":                              "time:30,sequence:2,unit=1ms,epoch=2020-01-01T00:00:00Z",
		"time:030,sequence:2,epoch=00ms":                                    "time:30,sequence:2,unit=1ms,epoch=1970-01-01T00:00:00Z",
	} {
		l, err := ParseLayout(spec)
		if l.String() != want || (err == nil) != (want != "") {
			t.Errorf("ParseLayout(%q) = %q, %v, want %q", spec, l, err, want)
		}
	}
}

func TestLayoutCapacity(t *testing.T) {
	for _, test := range []struct {
		spec, workerField string
		workers, perTick  int64
		perSecond         float64
	}{
		{LayoutLeaf, "worker", 1024, 4096, 4_096_000},
		{LayoutUIDGenerator29, "worker", 1 << 21, 8192, 8192},
		{LayoutVestaLegacyMaxPeak, "machine", 1024, 1 << 20, 1 << 20},
		{"time:41,sequence:20,unit=1m,epoch=0ms", "", 1, 1 << 20, (1 << 20) / 60.},
	} {
		l := mustLayout(t, test.spec)
		if l.WorkerField() != test.workerField || l.Workers() != test.workers || l.PerTick() != test.perTick || l.PerSecond() != test.perSecond {
			t.Errorf("%s: %q, %d workers, %d a tick, %v a second", test.spec, l.WorkerField(), l.Workers(), l.PerTick(), l.PerSecond())
		}
	}
}

func TestComposeRefuses(t *testing.T) {
	leaf := func(time, worker, sequence int64) Fields {
		return Fields{{"time", time}, {"worker", worker}, {"sequence", sequence}}
	}
	for _, test := range []struct {
		name, layout string
		fields       Fields
		field        string
		want         error
	}{
		{"time overflow", LayoutLeaf, leaf(1<<41, 0, 0), "time", ErrFieldRange},
		{"time negative", LayoutLeaf, leaf(-1, 0, 0), "time", ErrFieldRange},
		{"worker 1024", LayoutLeaf, leaf(0, 1024, 0), "worker", ErrFieldRange},
		{"worker negative", LayoutLeaf, leaf(0, -1, 0), "worker", ErrFieldRange},
		{"sequence 4096", LayoutLeaf, leaf(0, 0, 4096), "sequence", ErrFieldRange},
		{"sequence negative", LayoutLeaf, leaf(0, 0, -1), "sequence", ErrFieldRange},
		{"far out", LayoutLeaf, leaf(math.MinInt64, 0, 0), "time", ErrFieldRange},
		{"past the year 9999", "time:48,sequence:14,epoch=0ms", Fields{{"time", maxTime}, {"sequence", 0}}, "time", ErrFieldRange},
		{"machine 1024", LayoutVestaMinGranularity, Fields{{"machine", 1024}}, "machine", ErrFieldRange},
		{"missing", LayoutLeaf, leaf(1, 1, 1)[:2], "sequence", ErrInvalidArgument},
		{"none", LayoutLeaf, nil, "time", ErrInvalidArgument},
		{"twice", LayoutLeaf, append(leaf(1, 1, 1), Field{"time", 1}), "field", ErrInvalidArgument},
		{"unknown", LayoutLeaf, append(leaf(1, 1, 1), Field{"machine", 1}), "field", ErrInvalidArgument},
	} {
		id, err := mustLayout(t, test.layout).Compose(test.fields)
		v, ok := errors.AsType[*ValueError](err)
		if !errors.Is(err, test.want) || !ok || v.Field != test.field || id != 0 {
			t.Errorf("%s: %d, %v, want %v on %s", test.name, id, err, test.want, test.field)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, test := range []struct {
		name, layout string
		id           ID
	}{
		{"negative", LayoutLeaf, -1},
		{"sign bit", LayoutLeaf, math.MinInt64},
		{"bit 53", LayoutJSSafe53, 1 << 53},
		{"past the year 9999", "time:48,sequence:14,epoch=0ms", ID(maxTime) << 14},
	} {
		l := mustLayout(t, test.layout)
		if fields, err := l.Parse(test.id); !errors.Is(err, ErrInvalidID) {
			t.Errorf("%s: Parse = %v, %v, want ErrInvalidID", test.name, fields, err)
		}
		if at, err := l.Time(test.id); !errors.Is(err, ErrInvalidID) {
			t.Errorf("%s: Time = %v, %v, want ErrInvalidID", test.name, at, err)
		}
	}
}

func TestZeroLayout(t *testing.T) {
	var l Layout
	if !l.IsZero() || l.String() != "" || l.Name() != "" || l.WorkerField() != "" || l.EndTick() != 0 {
		t.Errorf("the zero layout is %q", l)
	}
	_, compose := l.Compose(nil)
	_, parse := l.Parse(0)
	_, at := l.Time(0)
	_, tick := l.TickOf(time.Now())
	_, enc := l.encoder(0, nil)
	for i, err := range []error{compose, parse, at, tick, enc} {
		if !errors.Is(err, ErrInvalidLayout) {
			t.Errorf("call %d: %v, want ErrInvalidLayout", i, err)
		}
	}
}

func TestLayoutTime(t *testing.T) {
	leaf := mustLayout(t, LayoutLeaf)
	at, err := leaf.Time(2006515713442840575)
	if want := leaf.Epoch().Add(478390625343 * time.Millisecond); err != nil || !at.Equal(want) || at.Location() != time.UTC {
		t.Errorf("Time = %v, %v, want %v", at, err, want)
	}
	for _, test := range []struct {
		layout, at string
		tick       int64
		want       error
	}{
		{LayoutLeaf, "2010-11-04T01:42:54.657Z", 0, nil},
		{LayoutLeaf, "2010-11-04T01:42:54.657999999Z", 0, nil},
		{LayoutLeaf, "2010-11-04T02:42:54.658+01:00", 1, nil},
		{LayoutLeaf, "2010-11-04T01:42:54.656999999Z", 0, ErrFieldRange},
		{LayoutLeaf, "2000-01-01T00:00:00Z", 0, ErrFieldRange},
		{LayoutVestaMaxPeak, "2015-05-28T08:05:39.999Z", 12758739, nil},
		{LayoutUIDGenerator28, "2026-01-01T00:00:00Z", 0, ErrTimeExhausted},
		{"time:40,sequence:1,unit=1ms,epoch=1960-01-01T00:00:00Z", "1969-12-31T23:59:59.9999Z", 315619199999, nil},
	} {
		tick, err := mustLayout(t, test.layout).TickOf(instant(t, test.at))
		if tick != test.tick || !errors.Is(err, test.want) {
			t.Errorf("%s: TickOf(%s) = %d, %v, want %d, %v", test.layout, test.at, tick, err, test.tick, test.want)
		}
	}
	// As a count of milliseconds these wrap around to an instant of 2023.
	const wrap = math.MaxUint64/1000 + 1
	for sec, want := range map[int64]error{1_700_000_000 - wrap: ErrFieldRange, 1_700_000_000 + wrap: ErrTimeExhausted} {
		if tick, err := leaf.TickOf(time.Unix(sec, 0)); !errors.Is(err, want) {
			t.Errorf("TickOf(%v) = %d, %v, want %v", time.Unix(sec, 0), tick, err, want)
		}
	}
	for tick, want := range map[int64]time.Time{
		math.MinInt64: leaf.Epoch(), -1: leaf.Epoch(), 0: leaf.Epoch(),
		leaf.EndTick(): leaf.Ends(), math.MaxInt64: leaf.Ends(),
	} {
		if got := leaf.TimeOf(tick); !got.Equal(want) {
			t.Errorf("TimeOf(%d) = %v, want %v", tick, got, want)
		}
	}
}

func TestEncoderRefuses(t *testing.T) {
	vesta := mustLayout(t, LayoutVestaMaxPeak)
	for _, test := range []struct {
		name      string
		layout    Layout
		worker    int64
		constants Fields
		want      error
	}{
		{"worker 1024", vesta, 1024, nil, ErrFieldRange},
		{"worker negative", vesta, -1, nil, ErrFieldRange},
		{"worker without a field", mustLayout(t, "time:41,sequence:12,epoch=0ms"), 1, nil, ErrFieldRange},
		{"constant too large", vesta, 0, Fields{{"genMethod", 4}}, ErrFieldRange},
		{"constant negative", vesta, 0, Fields{{"type", -1}}, ErrFieldRange},
		{"constant unknown", vesta, 0, Fields{{"datacenter", 0}}, ErrInvalidArgument},
		{"constant twice", vesta, 0, Fields{{"type", 0}, {"type", 0}}, ErrInvalidArgument},
		{"constant time", vesta, 0, Fields{{"time", 1}}, ErrInvalidArgument},
		{"constant sequence", vesta, 0, Fields{{"sequence", 1}}, ErrInvalidArgument},
		{"constant worker", vesta, 0, Fields{{"machine", 1}}, ErrInvalidArgument},
	} {
		if _, err := test.layout.encoder(test.worker, test.constants); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

// anyLayout draws a built-in layout or a spec of its own.
func anyLayout(t *rapid.T) Layout {
	if rapid.Bool().Draw(t, "builtin") {
		l, err := ParseLayout(rapid.SampledFrom(Layouts()).Draw(t, "name"))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	timeBits := rapid.IntRange(1, maxCursorBits-1).Draw(t, "timeBits")
	seqBits := rapid.IntRange(1, maxCursorBits-timeBits).Draw(t, "seqBits")
	items := []string{fmt.Sprintf("time:%d", timeBits), fmt.Sprintf("sequence:%d", seqBits)}
	free := 63 - timeBits - seqBits
	for _, name := range []string{rapid.SampledFrom([]string{FieldWorker, FieldMachine}).Draw(t, "worker"), "type", "region"} {
		if free > 0 && rapid.Bool().Draw(t, name) {
			bits := rapid.IntRange(1, free).Draw(t, name+"Bits")
			free -= bits
			at := rapid.IntRange(0, len(items)).Draw(t, name+"At")
			items = slices.Insert(items, at, fmt.Sprintf("%s:%d", name, bits))
		}
	}
	if free == 0 && items[0] != fmt.Sprintf("time:%d", timeBits) && rapid.Bool().Draw(t, "signed") {
		items = slices.Insert(items, 0, "version:1")
	}
	items = append(items,
		fmt.Sprintf("unit=%dms", rapid.Int64Range(1, maxUnit.Milliseconds()).Draw(t, "unit")),
		fmt.Sprintf("epoch=%dms", rapid.Int64Range(minEpoch, maxEpoch-1).Draw(t, "epoch")))
	l, err := ParseLayout(strings.Join(items, ","))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func anyFields(t *rapid.T, l Layout) Fields {
	var fields Fields
	for f := range l.Fields() {
		v := rapid.OneOf(rapid.Int64Range(0, f.Max), rapid.Just(int64(0)), rapid.Just(f.Max)).Draw(t, f.Name)
		fields = append(fields, Field{f.Name, v})
	}
	return fields
}

func TestLayoutRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLayout(t)
		if again, err := ParseLayout(l.String()); err != nil || again != l {
			t.Fatalf("%q comes back as %q, %v", l, again, err)
		}
		fields := anyFields(t, l)
		id, err := l.Compose(fields)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.Parse(id); err != nil || !slices.Equal(got, fields) {
			t.Fatalf("%s: Parse(Compose(%v)) = %v, %v", l, fields, got, err)
		}
		tick, _ := fields.Get(FieldTime)
		at, err := l.Time(id)
		if err != nil || !at.Equal(l.TimeOf(tick)) {
			t.Fatalf("%s: Time = %v, %v, want %v", l, at, err, l.TimeOf(tick))
		}
		if got, err := l.TickOf(at); err != nil || got != tick {
			t.Fatalf("%s: TickOf(TimeOf(%d)) = %d, %v", l, tick, got, err)
		}
	})
}

func TestEncodeIsCompose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLayout(t)
		fields := anyFields(t, l)
		want, err := l.Compose(fields)
		if err != nil {
			t.Fatal(err)
		}
		tick, _ := fields.Get(FieldTime)
		sequence, _ := fields.Get(FieldSequence)
		worker, _ := fields.Get(l.WorkerField())
		constants := slices.DeleteFunc(fields, func(f Field) bool {
			return f.Name == FieldTime || f.Name == FieldSequence || f.Name == l.WorkerField() ||
				f.Value == 0 && rapid.Bool().Draw(t, "default")
		})
		e, err := l.encoder(worker, constants)
		if err != nil {
			t.Fatal(err)
		}
		cursor := tick<<l.SequenceBits() | sequence
		if got := e.encode(cursor); got != want {
			t.Fatalf("%s: encode(%d) = %d, want %d", l, cursor, got, want)
		}
		if last := l.EndTick()<<l.SequenceBits() - 1; cursor < last && e.encode(cursor+1) <= want {
			t.Fatalf("%s: the ID after %d is %d", l, want, e.encode(cursor+1))
		}
	})
}

func TestFieldsJSON(t *testing.T) {
	data, err := json.Marshal(Fields{{"time", 3}, {"a\"b", -1}, {"machine", math.MaxInt64}})
	if want := `{"time":3,"a\"b":-1,"machine":9223372036854775807}`; err != nil || string(data) != want {
		t.Errorf("%s, %v, want %s", data, err, want)
	}
	if data, err := json.Marshal(Fields{}); err != nil || string(data) != `{}` {
		t.Errorf("empty: %s, %v", data, err)
	}
	if v, ok := (Fields{{"time", 3}}).Get("worker"); ok || v != 0 {
		t.Errorf("Get of a missing field = %d, %v", v, ok)
	}
}
