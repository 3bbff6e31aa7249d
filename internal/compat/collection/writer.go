package collection

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	retryEvery   = time.Second     // of a collection that cannot be written
	writeTimeout = 5 * time.Second // of one write
)

// A Writer keeps the collection at what was granted last. It writes in the background:
// nobody who grants waits for it, and while the collection cannot be written it remembers
// what is missing.
type Writer struct {
	c    *mongo.Collection
	tell func(error)

	mu      sync.Mutex // guards what follows
	pending map[string]Document

	wake   chan struct{} // has room for one
	ending context.Context
	end    context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
}

// NewWriter returns a writer. It calls tell, from one goroutine, with the first error after
// a write that went well, and with nil after the first write that goes well after an
// error.
func NewWriter(c *mongo.Collection, tell func(error)) *Writer {
	w := &Writer{c: c, tell: tell, pending: map[string]Document{}, wake: make(chan struct{}, 1), done: make(chan struct{})}
	w.ending, w.end = context.WithCancel(context.Background())
	go w.run()
	return w
}

// Granted has the segment of the step numbers up to last written.
func (w *Writer) Granted(tag string, last, step int64) {
	w.add(Document{Tag: tag, Max: last, Step: step, Timestamp: now()})
	select {
	case w.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// add puts a document among those to be written, unless a later one is there.
func (w *Writer) add(d Document) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if was, there := w.pending[d.Tag]; !there || was.Max < d.Max {
		w.pending[d.Tag] = d
	}
}

// run writes until the writer is closed.
func (w *Writer) run() {
	defer close(w.done)
	failing := false
	for {
		err := w.flush(w.ending)
		// The writer's own end is no failure of the collection.
		if (err != nil) != failing && w.ending.Err() == nil {
			failing = err != nil
			w.tell(err)
		}
		wake := w.wake
		var again <-chan time.Time
		if err != nil {
			// Grants must not hasten the next attempt.
			wake, again = nil, time.After(retryEvery)
		}
		select {
		case <-wake:
		case <-again:
		case <-w.ending.Done():
			return
		}
	}
}

// flush writes all that is to be written, and puts back what cannot be.
func (w *Writer) flush(ctx context.Context) error {
	w.mu.Lock()
	batch := w.pending
	w.pending = map[string]Document{}
	w.mu.Unlock()
	var failed error
	for _, d := range batch {
		// One failure is enough: each of the others could wait for its whole time, too.
		if failed == nil {
			failed = w.write(ctx, d)
		}
		if failed != nil {
			w.add(d)
		}
	}
	return failed
}

func (w *Writer) write(ctx context.Context, d Document) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return unavailable(write(ctx, w.c, d))
}

// Close writes what is missing, for as long as the context allows, and ends the writer.
func (w *Writer) Close(ctx context.Context) error {
	w.end()
	<-w.done
	// Only now: what the goroutine could not write is pending again.
	return w.flush(ctx)
}
