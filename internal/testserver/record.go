package testserver

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// A request is one for numbers, and what became of it. Receipts, which differ from run to
// run, are R1, R2, … in the order in which they were given.
type request struct {
	Server int    `json:"server"`
	Path   string `json:"path"` // with the method before it
	Token  string `json:"token,omitempty"`
	Store  bool   `json:"store"` // it names the store
	Body   any    `json:"body,omitempty"`
	Fault  string `json:"fault,omitempty"`
	Status int    `json:"status,omitempty"` // 0: there was no answer
	Answer any    `json:"answer,omitempty"`

	done bool
}

// A record is what came to the servers, in the order in which it came.
type record struct {
	mu       sync.Mutex // guards the fields below
	requests []*request
	receipts map[string]string
	changed  chan struct{} // closed when a request is done
}

func newRecord() *record { return &record{receipts: map[string]string{}, changed: make(chan struct{})} }

// begin notes a request.
func (r *record) begin(q *request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q.Body = r.hideLocked(q.Body)
	r.requests = append(r.requests, q)
}

// end notes what became of it.
func (r *record) end(q *request, status int, answer any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q.Status, q.Answer, q.done = status, r.hideLocked(answer), true
	close(r.changed)
	r.changed = make(chan struct{})
}

// hideLocked returns JSON with the receipts named.
func (r *record) hideLocked(v any) any {
	object, ok := v.(map[string]any)
	if !ok {
		return v
	}
	for _, key := range []string{"receipt", "after"} {
		text, ok := object[key].(string)
		if !ok || text == "" {
			continue
		}
		if _, known := r.receipts[text]; !known {
			r.receipts[text] = fmt.Sprintf("R%d", len(r.receipts)+1)
		}
		object[key] = r.receipts[text]
	}
	return object
}

// done returns how many requests are done, and what is closed when another one is.
func (r *record) done() (n int, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.requests {
		if q.done {
			n++
		}
	}
	return n, r.changed
}

func (r *record) json() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A list even where nothing came: tests would not expect null.
	text, err := json.Marshal(append([]*request{}, r.requests...))
	if err != nil {
		panic(err) // what came as JSON
	}
	return text
}

// compare tells how the requests that came differ from those that were to come, each of
// which names the fields that matter; empty if in nothing. More may have come after them.
func (r *record) compare(want []json.RawMessage, more bool) string {
	var got []map[string]any
	if err := json.Unmarshal(r.json(), &got); err != nil {
		panic(err) // our own
	}
	var b strings.Builder
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(want) && more:
		case i >= len(want):
			fmt.Fprintf(&b, "request %d: %s came, and none was to come\n", i+1, asText(got[i]))
		case i >= len(got):
			fmt.Fprintf(&b, "request %d: none came, and %s was to come\n", i+1, want[i])
		default:
			var w map[string]any
			if err := json.Unmarshal(want[i], &w); err != nil {
				fmt.Fprintf(&b, "request %d: %v\n", i+1, err)
				continue
			}
			var differ []string
			for key := range w {
				if !reflect.DeepEqual(got[i][key], w[key]) {
					differ = append(differ, key)
				}
			}
			if slices.Sort(differ); len(differ) > 0 {
				fmt.Fprintf(&b, "request %d: %s came, and %s was to come: they differ in %s\n", i+1, asText(got[i]), want[i], strings.Join(differ, ", "))
			}
		}
	}
	return b.String()
}

func asText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // what came as JSON
	}
	return string(text)
}
