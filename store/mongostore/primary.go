package mongostore

import (
	"context"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
)

// primaries tell who answers: see driver.Contact. It is the primary's process and its
// election. A process answers on connections of its own, so that one that was started anew,
// perhaps on a copy, answers on a new one: the server is asked again once there is one. An
// election alone loses nothing that a majority has.
type primaries struct {
	counts bool         // connections are counted; else the server is asked each time
	made   atomic.Int64 // how many connections were made

	mu   sync.Mutex // guards what follows
	told string
	at   int64 // when so many had been made; -1: it was not asked yet
}

// monitor counts connections, each before it is used.
func (p *primaries) monitor() *event.PoolMonitor {
	p.counts = true
	return &event.PoolMonitor{Event: func(e *event.PoolEvent) {
		if e.Type == event.ConnectionCreated {
			p.made.Add(1)
		}
	}}
}

// after returns the server of an earlier answer: it may be a later one.
func (p *primaries) after(ask func() (string, error)) (string, error) {
	made := p.made.Load()
	p.mu.Lock()
	told, known := p.told, p.counts && p.at == made
	p.mu.Unlock()
	if known {
		return told, nil
	}
	told, err := ask()
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told, p.at = told, made // if the question has made another connection, it is asked once more
	return told, nil
}

// primary asks the server who it is.
func (s *space) primary(ctx context.Context) (string, error) {
	return s.primaries.after(func() (string, error) {
		h, err := s.hello(ctx)
		return h.primary(), err
	})
}

// primary is the server that has answered. It is empty for a router, of which there may be several
// before several shards, and where the server does not tell.
func (h hello) primary() string {
	if h.Msg == isRouter || h.TopologyVersion.ProcessID.IsZero() {
		return ""
	}
	return "process " + h.TopologyVersion.ProcessID.Hex() + "/election " + h.ElectionID.Hex()
}

// isRouter is the msg in the hello of a sharded cluster's router.
const isRouter = "isdbgrid"

// topologyVersion tells the process that has answered.
type topologyVersion struct {
	ProcessID bson.ObjectID `bson:"processId"`
}
