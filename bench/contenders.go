package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/bwmarrin/snowflake"
	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"
	"github.com/rs/xid"
	"github.com/sony/sonyflake/v2"
	"github.com/yitter/idgenerator-go/idgen"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/strategy"
)

// A contender is something that issues numbers.
type contender struct {
	name    string
	worker  func() work // makes the loop of one goroutine; all share one issuer
	close   func(context.Context) error
	ceiling float64 // numbers a second that its format allows; 0: no limit within reach
	note    string
}

// wideLayout has 22 sequence bits in each millisecond, so that its ceiling of
// 4.2 billion numbers a second is out of reach.
const wideLayout = "time:40,worker:1,sequence:22,unit=1ms,epoch=2020-01-01T00:00:00Z"

// batch is how many numbers NextN is asked for.
const batch = 1024

func contenders(ctx context.Context) ([]contender, error) {
	ours, err := hapaxContenders(ctx)
	if err != nil {
		return nil, err
	}
	peers, err := peers()
	return append(ours, peers...), err
}

func hapaxContenders(ctx context.Context) ([]contender, error) {
	add := new(bareAdd)
	segment, err := hapax.NewSegment(ctx, memstore.New(), "orders", hapax.SegmentOptions{})
	if err != nil {
		return nil, err
	}
	list := []contender{
		{"bare `atomic.Int64.Add`", add.worker, noClose, 0, "against itself: how steady the machine is"},
		{"the same behind a call", add.calledWorker, noClose, 0, "the floor of any issuer that is called"},
		{"hapax `Segment`", segmentWorker(segment), segment.Close, 0, "target: 1.3 ×"},
		{"hapax `Segment.Lane`, `TryNext`", laneWorker(segment.Lane), segment.Close, 0, laneTarget},
		{"hapax `Segment.Lane`, `Next`", calledLaneWorker(segment.Lane), segment.Close, 0, ""},
	}
	for _, s := range []struct {
		name, layout, note string
		mutex              bool
	}{
		{"hapax `Snowflake`, 22 sequence bits", wideLayout, "target: 1.3 ×", false},
		{"hapax `Snowflake`, 22 sequence bits, mutex populator", wideLayout, "", true},
		{"hapax `Snowflake`, `leaf`", hapax.LayoutLeaf, "target: 99 % of the ceiling", false},
		{"hapax `Snowflake`, `leaf`, mutex populator", hapax.LayoutLeaf, "", true},
	} {
		layout, err := hapax.ParseLayout(s.layout)
		if err != nil {
			return nil, err
		}
		issuer, err := hapax.NewSnowflake(ctx, memstore.New(), hapax.SnowflakeOptions{Layout: layout, Mutex: s.mutex})
		if err != nil {
			return nil, err
		}
		list = append(list, contender{s.name, snowflakeWorker(issuer), issuer.Close, layout.PerSecond(), s.note})
		if s.layout == wideLayout && !s.mutex {
			list = append(list,
				contender{"hapax `Snowflake.Lane`, `TryNext`, 22 sequence bits", laneWorker(issuer.Lane), issuer.Close, layout.PerSecond(), laneTarget},
				contender{"hapax `Snowflake.Lane`, `Next`, 22 sequence bits", calledLaneWorker(issuer.Lane), issuer.Close, layout.PerSecond(), ""})
			list = append(list, batchContender("hapax `Snowflake.NextN(1024)`, 22 sequence bits", issuer, layout.PerSecond()))
		}
	}
	for _, l := range []struct {
		name, note string
		plugins    []strategy.Plugin
	}{
		{"hapax `Segment` through a `strategy.Line`", "", nil},
		{"the same with a plugin that does nothing", "target: 10 ns more than without", []strategy.Plugin{nothing}},
	} {
		line, err := pluggedLine(ctx, l.plugins)
		if err != nil {
			return nil, err
		}
		list = append(list, contender{l.name, lineWorker(line), line.Close, 0, l.note})
	}
	cached, err := cachedContender(ctx)
	return append(list, cached, batchContender("hapax `Segment.NextN(1024)`", segment, 0)), err
}

// nothing is a plugin that has its say in each number, and says nothing.
var nothing = strategy.Plugin{
	Name:   "nothing",
	Before: func(context.Context, strategy.Call) error { return nil },
	After:  func(context.Context, strategy.Call, strategy.Numbers) error { return nil },
}

func pluggedLine(ctx context.Context, plugins []strategy.Plugin) (*strategy.Line, error) {
	r := strategy.NewRegistry(strategy.Options{})
	if err := r.Register("segment", strategy.Segment(memstore.New(), hapax.SegmentOptions{})); err != nil {
		return nil, err
	}
	for _, p := range plugins {
		if err := r.Use(p); err != nil {
			return nil, err
		}
	}
	return r.Open(ctx, "segment", hapax.Tag{Name: "orders"})
}

func lineWorker(issuer *strategy.Line) func() work {
	return func() work {
		ctx := context.Background()
		return func(n int) {
			for range n {
				if _, err := issuer.Next(ctx); err != nil {
					panic(err)
				}
			}
		}
	}
}

// segmentWorker and snowflakeWorker ask for one number at a time. They call
// the concrete type, as a program does that embeds one.
func segmentWorker(issuer *hapax.Segment) func() work {
	return func() work {
		ctx := context.Background()
		return func(n int) {
			for range n {
				if _, err := issuer.Next(ctx); err != nil {
					panic(err)
				}
			}
		}
	}
}

func snowflakeWorker(issuer *hapax.Snowflake) func() work {
	return func() work {
		ctx := context.Background()
		return func(n int) {
			for range n {
				if _, err := issuer.Next(ctx); err != nil {
					panic(err)
				}
			}
		}
	}
}

const laneTarget = "target: 1 ×, and 0.6 × that on all cores"

// laneWorker asks a lane of its own for one number at a time: without a call where the
// lane has one in hand.
func laneWorker(open func() *hapax.Lane) func() work {
	return func() work {
		ctx, lane := context.Background(), open()
		return func(n int) {
			for range n {
				if _, ok := lane.TryNext(); ok {
					continue
				}
				if _, err := lane.Next(ctx); err != nil {
					panic(err)
				}
			}
		}
	}
}

// calledLaneWorker asks by calls alone.
func calledLaneWorker(open func() *hapax.Lane) func() work {
	return func() work {
		ctx, lane := context.Background(), open()
		return func(n int) {
			for range n {
				if _, err := lane.Next(ctx); err != nil {
					panic(err)
				}
			}
		}
	}
}

func batchContender(name string, issuer hapax.Issuer, ceiling float64) contender {
	worker := func() work {
		dst := make([]hapax.ID, batch)
		return func(n int) {
			for range n / batch {
				must(issuer.NextN(context.Background(), dst))
			}
		}
	}
	return contender{name, worker, issuer.Close, ceiling, "target: 0.6 ns"}
}

// peers are other issuers for Go. Where settings raise a ceiling that hides the
// cost of issuing, they are measured with those settings as well.
func peers() ([]contender, error) {
	node, err := snowflake.NewNode(1)
	if err != nil {
		return nil, err
	}
	machine := func() (int, error) { return 1, nil }
	sony, err := sonyflake.New(sonyflake.Settings{MachineID: machine})
	if err != nil {
		return nil, fmt.Errorf("sonyflake: %w", err)
	}
	wideSony, err := sonyflake.New(sonyflake.Settings{MachineID: machine, BitsSequence: 22, BitsMachineID: 1, TimeUnit: 1e6})
	if err != nil {
		return nil, fmt.Errorf("sonyflake: %w", err)
	}
	options := idgen.NewIdGeneratorOptions(1)
	options.WorkerIdBitLength, options.SeqBitLength = 1, 21
	yitter := idgen.NewDefaultIdGenerator(options)

	return []contender{
		{"bwmarrin/snowflake v0.3.0", peer(func() { node.Generate() }), noClose, 4096e3, ""},
		{"sonyflake/v2 v2.2.0", peer(func() { must(sony.NextID()) }), noClose, 25600, "sleeps at its ceiling"},
		{"sonyflake/v2 v2.2.0, 22 sequence bits, 1 ms", peer(func() { must(wideSony.NextID()) }), noClose, 1 << 22 * 1e3, ""},
		{"yitter/idgenerator-go v1.3.3, 21 sequence bits", peer(func() { yitter.NewLong() }), noClose, (1<<21 - 5) * 1e3, ""},
		{"rs/xid v1.6.0", peer(func() { xid.New() }), noClose, 1 << 24, "96 bits; repeats above its ceiling"},
		{"oklog/ulid/v2 v2.1.2", peer(func() { ulid.Make() }), noClose, 0, "128 bits"},
		{"google/uuid v1.6.0, version 7", peer(func() { must(uuid.NewV7()) }), noClose, 4096e3, "128 bits; its time runs ahead above its ceiling"},
	}, nil
}

// peer calls a function once for each number. The call costs about a
// nanosecond, little beside what these issuers do.
func peer(next func()) func() work {
	return func() work {
		return func(n int) {
			for range n {
				next()
			}
		}
	}
}

func must[T any](_ T, err error) {
	if err != nil {
		panic(err)
	}
}

func noClose(context.Context) error { return nil }

// bareAdd is the least that any issuer shared between goroutines has to do. Its
// word has its cache lines to itself.
type bareAdd struct {
	_ [128]byte
	n atomic.Int64
	_ [128]byte
}

func (b *bareAdd) worker() work { return b.issue }

func (b *bareAdd) calledWorker() work { return b.issueCalled }

// issue keeps the word's address in a register; a closure would load it anew
// for each add.
func (b *bareAdd) issue(n int) {
	for range n {
		b.n.Add(1)
	}
}

func (b *bareAdd) issueCalled(n int) {
	for range n {
		b.next()
	}
}

//go:noinline
func (b *bareAdd) next() int64 { return b.n.Add(1) }
