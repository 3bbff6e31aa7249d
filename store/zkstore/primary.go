package zkstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax/internal/zksession"
)

// primary identifies the server that has answered on a link: see driver.Contact. It is the epoch of the
// ensemble's leader, which every election raises, after the quorum has it on disk. A server that
// stands alone has no elections, and its epoch stays: there its run counts as well.
func (l *link) primary() string {
	epoch, known := l.answers.epoch()
	switch {
	case !known:
		return ""
	case l.run == "":
		return fmt.Sprintf("epoch %d", epoch)
	}
	return fmt.Sprintf("epoch %d/run %s", epoch, l.run)
}

// runUnit is what the number of a session is divided by. A server that starts numbers its
// sessions from the time, in units of 1/65,536 ms: so there are 256 ms in one run's name, sooner
// than which no server starts again, and it names millions of sessions as a rule.
const runUnit = 1 << 24

// identifyServer finds out whether a new link leads to a server that stands alone, and which run
// of it. The servers of an ensemble number sessions each for itself. Where the server does not
// tell, elections alone count.
func (s *space) identifyServer(ctx context.Context, l *link) (err error) {
	l.voters, err = zksession.Call(ctx, l.Session, func(conn *zk.Conn) (int, error) {
		config, _, err := conn.Get("/zookeeper/config")
		switch {
		case zksession.IsLost(err):
			return 0, err
		case err != nil: // there may be no such node, or it is not to be read
			return -1, nil //nolint:nilerr // see above
		case len(config) == 0 && s.given == nil: // a given session outlasts the server
			l.run = fmt.Sprint(conn.SessionID() / runUnit)
		}
		voters := 0
		for line := range strings.Lines(string(config)) {
			if strings.HasPrefix(line, "server.") && !strings.Contains(line, ":observer") {
				voters++
			}
		}
		return voters, nil
	})
	return err
}

// answers are what a server has sent on a connection, of which the client library does not tell
// the number of the last transaction.
type answers struct {
	// Only the library's one goroutine that reads uses these.
	begun bool   // the first answer, which opens the session, has no such number
	head  []byte // of an answer, as far as it has come
	skip  int    // how many bytes are left of an answer whose head is known

	mu     sync.Mutex // guards what follows
	latest int64      // the epoch of the latest transaction; with seen
	seen   bool
}

// answerHead is how many bytes are of interest: length, request, transaction.
const answerHead = 4 + 4 + 8

// epoch returns that of the latest transaction, if there was an answer.
func (a *answers) epoch() (epoch int64, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latest, a.seen
}

// note notes the number of a transaction; a notice that is no answer has -1.
func (a *answers) note(zxid int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if zxid > 0 {
		a.latest, a.seen = max(a.latest, zxid>>32), true
	}
}

// read takes what has come.
func (a *answers) read(b []byte) {
	for len(b) > 0 {
		if a.skip > 0 {
			n := min(a.skip, len(b))
			a.skip, b = a.skip-n, b[n:]
			continue
		}
		n := min(answerHead-len(a.head), len(b))
		a.head, b = append(a.head, b[:n]...), b[n:]
		if len(a.head) < answerHead {
			return
		}
		if a.begun {
			a.note(int64(binary.BigEndian.Uint64(a.head[8:])))
		}
		// The library refuses an answer that is shorter than its head.
		a.skip = max(0, int(int32(binary.BigEndian.Uint32(a.head)))-(answerHead-4))
		a.begun, a.head = true, a.head[:0]
	}
}

// watched is a connection of which the answers are read on the way, and what is asked.
type watched struct {
	net.Conn
	answers *answers
	sends   *sends
}

// Read implements net.Conn. Whoever gets an answer from the library finds it noted.
func (w watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.answers.read(b[:n])
	return n, err
}
