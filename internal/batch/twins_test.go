package batch

import (
	"testing"

	"github.com/hapax-id/hapax/internal/twins"
)

// Each rule of a batch has a twin in which it is broken, and a test that notices.
func TestBrokenRules(t *testing.T) {
	twins.Run(t, "batch", []twins.Twin{
		{"no call is lost", "batch.go", "		b.waiting = append(b.waiting, c)\n", `		if b.waiting = append(b.waiting, c); twin("lost") && len(b.waiting) == 3 { b.waiting = b.waiting[:2] }` + "\n", "TestModel"},
		{"... nor in two trips", "batch.go", "		b.waiting = slices.Delete(b.waiting, 0, n)\n", `		b.waiting = slices.Delete(b.waiting, 0, n); if twin("two trips") && n == 3 { b.waiting = append(b.waiting, &call[Q, A]{ask: some[0].ask, done: make(chan struct{})}) }` + "\n", "TestModel"},
		{"an answer comes after its trip's end", "batch.go", "		b.makeTrip(t.ctx, t)\n", `		if twin("too soon") { for _, c := range t.calls { close(c.done) } }; b.makeTrip(t.ctx, t); if twin("too soon") { continue }` + "\n", "TestModel"},
		{"a trip is of no more calls than it may be", "batch.go", "min(len(b.waiting), b.opts.Most)", `min(len(b.waiting), map[bool]int{false: b.opts.Most, true: b.opts.Most + 1}[twin("most")])`, "TestModel"},
		{"... also where calls have keys", "batch.go", "len(some) == b.opts.Most ||", `len(some) == b.opts.Most && !twin("most too") ||`, "TestModel"},
		{"there are no more trips than may be", "batch.go", "b.trips < b.opts.Trips &&", `(b.trips < b.opts.Trips || twin("trips")) &&`, "TestModel"},
		{"... nor calls beside which another begins", "batch.go", "b.asks < b.opts.Few && !b.isBusyLocked(c)", `(b.asks < b.opts.Few || twin("few")) && !b.isBusyLocked(c)`, "TestModel"},
		{"... also one that has waited", "batch.go", "if b.asks < b.opts.Few {", `if b.asks < b.opts.Few || twin("few too") {`, "TestModel"},
		{"a key is in one trip at a time", "batch.go", "return b.opts.Key != nil && b.keys", `return b.opts.Key != nil && !twin("busy") && b.keys`, "TestModel"},
		{"... also one that has waited for it", "batch.go", "|| b.keys[key] ||", `|| b.keys[key] && !twin("busy too") ||`, "TestModel"},
		{"a trip names a key once where it must", "batch.go", "b.opts.Once && named[key]", `b.opts.Once && named[key] && !twin("once")`, "TestModel"},
		{"callers of one trip have an answer each", "batch.go", "c.value = values[i]", `c.value = values[map[bool]int{false: i}[twin("same answer")]]`, "TestModel"},
		{"an error reaches each of them", "batch.go", "if c.err = err; err == nil {", `if c.err = err; twin("swallowed") && i > 0 && err != nil { c.err = nil } else if err == nil {`, "TestModel"},
		{"so does a panic", "batch.go", "if p := recover(); p != nil {", `if p := recover(); p != nil && twin("quiet") { values = make([]A, len(asks)) } else if p != nil {`, "TestModel"},
		{"... even if all have left", "batch.go", "t.stay == 0 {\n		panic(p)", `t.stay == 0 && !twin("unheard") {` + "\n		panic(p)", "TestPanicOfNobody"},
		{"a caller that leaves takes nothing from the others", "batch.go", "return w == c })", `return w == c || twin("leaves all") })`, "TestModel"},
		{"... nor ends a trip with others", "batch.go", "c.trip.stay == 0 {\n", `c.trip.stay == 0 || twin("its time") {` + "\n", "TestModel"},
		{"... unless it is the last", "batch.go", "		c.trip.cancel()\n", `		if !twin("never ends") { c.trip.cancel() }` + "\n", "TestLastOneLeaves"},
		{"... and nothing is asked for it", "batch.go", "	if c.trip == nil {\n", `	if c.trip == nil && !twin("stays") {` + "\n", "TestModel"},
		{"an answer at the moment of leaving is used", "batch.go", "	case <-c.done:\n		return false\n", "	case <-map[bool]chan struct{}{false: c.done}[twin(\"wasted\")]:\n		return false\n", "TestAnswerAtTheEnd"},
		{"calls are served in the order of their coming", "batch.go", "rest = append(rest, c)", `if rest = append(rest, c); twin("order of coming") { rest = append([]*call[Q, A]{c}, rest[:len(rest)-1]...) }`, "TestModel"},
		{"whatever waits begins when it may", "batch.go", "	if len(t.calls) > 0 {\n", `	if twin("idle") && len(over.calls) > 1 { b.waiting, t.calls = append(t.calls, b.waiting...), nil }` + "\n	if len(t.calls) > 0 {\n", "TestModel"},
		{"callers of one moment share a trip", "batch.go", "	runtime.Gosched() // callers that have", `	if !twin("hurried") { runtime.Gosched() } // callers that have`, "TestGathersBesideShortTrips"},
		{"a trip may be left behind where it must", "batch.go", "	if b.opts.Apart {\n", `	if b.opts.Apart && !twin("together") {` + "\n", "TestLoneCall"},
		{"a lone trip ends with the batch's life", "batch.go", "if b.opts.Life.Done() != nil {", `if b.opts.Life.Done() != nil && !twin("immortal") {`, "TestLoneCall"},
		{"Close waits", "batch.go", "	if idle != nil {\n", `	if idle != nil && !twin("hasty") {` + "\n", "TestModel"},
		{"... and refuses what waits", "batch.go", "		close(c.done)\n	}\n	b.waiting = nil\n", `		if !twin("forgotten") { close(c.done) }` + "\n	}\n	b.waiting = nil\n", "TestModel"},
		{"... and what comes", "batch.go", "if b.closed {", `if b.closed && !twin("open") {`, "TestCallOfNobody"},
	})
}
