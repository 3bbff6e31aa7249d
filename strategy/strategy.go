package strategy

import (
	"context"
	"fmt"
	"sync"

	"github.com/hapax-id/hapax"
)

// A Strategy makes the issuers of tags. Its method is safe for concurrent use.
type Strategy interface {
	// Open returns the issuer of a tag from the tag's definition, of which only
	// the name need be set. Closing the issuer releases what it holds.
	Open(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error)
}

// Readiness may be implemented by a strategy's issuer, too: Ready returns nil if it can issue now,
// and otherwise why not. Without it an issuer counts as ready while the store answers.
type Readiness interface {
	Ready() error
}

// Measured may be implemented by a strategy's issuer, too: Measure returns values for metrics by
// name, 16 at most.
type Measured interface {
	Measure() map[string]float64
}

// A Func is a function as a strategy.
type Func func(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error)

// Open calls the function.
func (f Func) Open(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error) { return f(ctx, tag) }

// Segment returns the strategy that counts, on the segments that a store grants.
// A tag's definition counts before the options.
func Segment(store hapax.SegmentStore, opts hapax.SegmentOptions) Strategy {
	return Func(func(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error) {
		o := opts
		for _, f := range []struct {
			option *int64
			value  int64
		}{
			{&o.Start, tag.Start},
			{&o.Step, tag.Step},
			{&o.MinStep, tag.MinStep},
			{&o.MaxStep, tag.MaxStep},
			{&o.Delta, tag.Delta},
			{&o.Remainder, tag.Remainder},
		} {
			if f.value != 0 {
				*f.option = f.value
			}
		}
		s, err := hapax.NewSegment(ctx, store, tag.Name, o)
		if err != nil {
			return nil, err // not a nil *Segment in an interface
		}
		return s, nil
	})
}

// Snowflake returns the strategy that issues numbers which hold time, under
// worker IDs that a store grants. All tags of a pool share one issuer, which is
// closed with the last of them.
func Snowflake(workers hapax.WorkerStore, opts hapax.SnowflakeOptions) Strategy {
	return &snowflake{workers: workers, opts: opts, pools: map[string]*pool{}}
}

type snowflake struct {
	workers hapax.WorkerStore
	opts    hapax.SnowflakeOptions

	mu    sync.Mutex // guards pools and the pools' users; never held while waiting
	pools map[string]*pool
}

// A pool is one issuer that tags share.
type pool struct {
	name   string
	users  int
	ready  chan struct{} // closed once issuer and err are set
	issuer hapax.Issuer
	err    error
}

func (s *snowflake) Open(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error) {
	opts := s.opts
	if tag.Pool != "" {
		opts.Pool = tag.Pool
	}
	if opts.Pool == "" {
		opts.Pool = hapax.DefaultPool
	}
	for {
		s.mu.Lock()
		p, opened := s.pools[opts.Pool]
		if !opened {
			p = &pool{name: opts.Pool, ready: make(chan struct{})}
			s.pools[opts.Pool] = p
		}
		p.users++
		s.mu.Unlock()
		if !opened {
			s.begin(ctx, p, opts)
			if p.err != nil {
				return nil, p.err
			}
			return &shared{Issuer: p.issuer, of: s, pool: p}, nil
		}
		select {
		case <-p.ready:
			if p.err == nil {
				return &shared{Issuer: p.issuer, of: s, pool: p}, nil
			}
			// Whoever opened it failed, perhaps because its own context ended.
		case <-ctx.Done():
			_ = s.leave(context.WithoutCancel(ctx), p) // the error of the context tells more
			return nil, fmt.Errorf("%w: %w", hapax.ErrNoWorker, context.Cause(ctx))
		}
	}
}

// begin opens the pool's issuer, or removes the pool.
func (s *snowflake) begin(ctx context.Context, p *pool, opts hapax.SnowflakeOptions) {
	p.err = hapax.ErrInternal // also where what the options name panics: those who wait try for themselves then
	defer func() {
		if p.err != nil {
			s.mu.Lock()
			delete(s.pools, p.name)
			s.mu.Unlock()
		}
		close(p.ready)
	}()
	issuer, err := hapax.NewSnowflake(ctx, s.workers, opts)
	if p.err = err; err == nil {
		p.issuer = issuer
	}
}

// leave closes the pool's issuer after its last user. It is not called by the opener of a pool that
// could not be opened: that one counts for good, so that the last user of a pool has an issuer to close.
func (s *snowflake) leave(ctx context.Context, p *pool) error {
	s.mu.Lock()
	p.users--
	last := p.users == 0
	if last {
		delete(s.pools, p.name)
	}
	s.mu.Unlock()
	if !last {
		return nil
	}
	return p.issuer.Close(ctx)
}

// shared is the pool's issuer as one tag has it.
type shared struct {
	hapax.Issuer
	of   *snowflake
	pool *pool

	mu     sync.Mutex // guards closed
	closed bool
}

// Close leaves the pool. Calls of other tags go on.
func (s *shared) Close(ctx context.Context) error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return nil
	}
	return s.of.leave(ctx, s.pool)
}
