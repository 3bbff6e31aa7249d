package respapi

import (
	"fmt"

	"github.com/hapax-id/hapax/api"
)

// multiRule tells what becomes of a command between MULTI and EXEC.
type multiRule int

const (
	queued multiRule = iota // it is kept for EXEC
	atOnce                  // it is carried out
	never                   // it is refused, and the transaction with it
)

// A transaction is what came after MULTI. EXEC carries it out in order. It is no
// more than that: numbers are unique without it, and those of other clients may lie
// between the ones it issues.
type transaction struct {
	frames []byte // whole commands, as they came
	count  int
	spoilt bool // one of them was refused
}

// spoil has EXEC refuse the transaction, if there is one.
func (t *transaction) spoil() {
	if t != nil {
		t.spoilt = true
	}
}

func (c *conn) multiBegin([][]byte) {
	if c.tx != nil {
		c.fail("ERR MULTI calls can not be nested")
		return
	}
	c.tx = new(transaction)
	c.ok()
}

var errQueueFull = fmt.Errorf("%w: the commands between MULTI and EXEC have more than %d bytes, or those of all connections more than %d; send fewer at a time",
	api.ErrLimitExceeded, maxQueued, maxQueuedByAll)

// enqueue keeps a command for EXEC.
func (c *conn) enqueue(frame []byte) {
	if !c.tx.spoilt { // else EXEC has no use for it
		c.tx.frames = append(c.tx.frames, frame...)
		c.tx.count++
		if all := c.srv.queued.Add(int64(len(frame))); len(c.tx.frames) > maxQueued || all > maxQueuedByAll {
			c.endTx()
			// Empty, and still there: EXEC has to refuse what is not whole.
			c.tx = &transaction{spoilt: true}
			c.failWith(errQueueFull)
			return
		}
	}
	c.b.out = appendSimple(c.b.out, "QUEUED")
}

// endTx forgets the transaction, if there is one, and returns it.
func (c *conn) endTx() *transaction {
	tx := c.tx
	if tx != nil {
		c.tx = nil
		c.srv.queued.Add(-int64(len(tx.frames)))
	}
	return tx
}

func (c *conn) discard([][]byte) {
	if c.endTx() == nil {
		c.fail("ERR DISCARD without MULTI")
		return
	}
	c.ok()
}

func (c *conn) exec([][]byte) {
	tx := c.endTx()
	switch {
	case tx == nil:
		c.fail("ERR EXEC without MULTI")
		return
	case tx.spoilt:
		c.fail("EXECABORT Transaction discarded because of previous errors.")
		return
	}
	c.b.out = appendArray(c.b.out, tx.count)
	for frames := tx.frames; len(frames) > 0; {
		args, size, err := parse(frames, c.b.args[:0])
		if err != nil || size == 0 {
			panic("a command that was whole is not") // queued as parse had found it
		}
		c.b.args = args[:0]
		// Each was counted for its caller when it was put into the queue.
		size *= c.run(args, frames[:size], frames[size:])
		frames = frames[size:]
		if c.client.Rest(); c.client.HasLeft() {
			return
		}
		if len(c.b.out) >= maxUnsent {
			c.flush()
		}
	}
}
