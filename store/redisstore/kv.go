package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

const (
	pageSize  = 500     // rows of a listing that one script answers
	pageBytes = 1 << 20 // about how much of values one script answers
)

var (
	_ driver.KV = (*space)(nil)
	_ driver.KV = mending{}
)

// A space is the store's keys.
type space struct {
	calls driver.Calls
	rdb   redis.UniversalClient // a *redis.Client or a *redis.ClusterClient
	opts  Options
	keys  keys
	id    string

	mu      sync.Mutex     // guards closing done, and running.Add against running.Wait
	done    chan struct{}  // closed when the store is
	running sync.WaitGroup // see answered
}

// mending is a space in which a tag that was lost is one that there never was.
type mending struct{ *space }

// Get implements driver.KV.
func (m mending) Get(ctx context.Context, _ driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	return m.read(ctx, keys, true)
}

// Step implements driver.KV.
func (m mending) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	return m.step(ctx, step, true)
}

// Get implements driver.KV. It is one round trip for about a MiB, and always answered by the
// primary. A survey is not told of a tag that was lost, so that whoever knows it finds that the store lacks it.
func (s *space) Get(ctx context.Context, from driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	return s.read(ctx, keys, from == driver.Lagging)
}

// Step implements driver.KV. It is one round trip.
func (s *space) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	return s.step(ctx, step, false)
}

func (s *space) read(ctx context.Context, keys []driver.Key, mend bool) ([]driver.Cell, error) {
	return answered(ctx, s, "read", func(ctx context.Context) ([]driver.Cell, error) { return s.readAll(ctx, keys, mend) })
}

// readAll reads rows, also none: then it only looks whether the store is the one that it was.
func (s *space) readAll(ctx context.Context, keys []driver.Key, mend bool) ([]driver.Cell, error) {
	cells := make([]driver.Cell, 0, len(keys))
	for {
		left := keys[len(cells):]
		r, err := s.eval(ctx, readScript, s.keys.of(left...), append([]any{s.id, format, flag(mend), pageBytes}, fields(left)...)...)
		if err != nil {
			return nil, err
		}
		if len(r)-1 > len(left) || len(r) == 1 && len(left) > 0 {
			return nil, unexpected(r)
		}
		for i, v := range r[1:] {
			c := cell(v)
			if !c.Known {
				return nil, fmt.Errorf("%w: redis: tag %q exists by the index and its key is gone", hapax.ErrStoreRolledBack, left[i].Name)
			}
			cells = append(cells, c)
		}
		if len(cells) == len(keys) {
			return cells, nil
		}
	}
}

// Scan implements driver.KV. A round trip brings 500 rows, or about a MiB; tags, whose keys
// have to be named to the server, take two.
func (s *space) Scan(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	return answered(ctx, s, "list", func(ctx context.Context) (rows []driver.Row, err error) {
		for more := true; more && len(rows) < limit; {
			var page []driver.Row
			if page, more, err = s.page(ctx, table, after, min(limit-len(rows), pageSize)); err != nil {
				return nil, err
			}
			for _, row := range page {
				if after = row.Name; row.Value != nil {
					rows = append(rows, row)
				}
			}
		}
		return rows, nil
	})
}

// page returns up to n rows after the given one, those without a value that are gone by now, and
// whether there may be more.
func (s *space) page(ctx context.Context, table, after string, n int) (rows []driver.Row, more bool, err error) {
	what, from, to, base := "rows", field(driver.Key{Table: table, Name: after}), "("+table+"\x01", field(driver.Key{Table: table})
	if table == "" {
		what, from, to, base = "tags", after, "+", ""
	}
	r, err := s.eval(ctx, listScript, s.keys.of(), s.id, format, "", what, "("+from, to, n, pageBytes)
	if err != nil {
		return nil, false, err
	}
	more = r.text(0) == saidMore
	if table != "" {
		for i := 1; i+1 < len(r); i += 2 {
			rows = append(rows, driver.Row{Name: strings.TrimPrefix(r.text(i), base), Value: []byte(r.text(i + 1))})
		}
		return rows, more, nil
	}
	keys := make([]driver.Key, len(r)-1)
	for i := range keys {
		keys[i].Name = r.text(i + 1)
	}
	if len(keys) == 0 {
		return nil, false, nil
	}
	cells, err := s.readAll(ctx, keys, true)
	for i, c := range cells {
		rows = append(rows, driver.Row{Name: keys[i].Name, Value: c.Value})
	}
	return rows, more, err
}

func (s *space) step(ctx context.Context, step driver.Step, mend bool) (result driver.Result, err error) {
	var named []driver.Key
	args := append(make([]any, 0, 32+4*len(step.Each)), s.id, format, flag(mend))
	add := func(key driver.Key, what string, old, next []byte) {
		named, args = append(named, key), append(args, field(key), what, old, next)
	}
	for _, c := range step.If {
		if c.Least != nil {
			add(c.Key, "least", c.Least, nil)
		} else {
			add(c.Key, "same", c.Same.Value, nil)
		}
	}
	for _, p := range step.Raise {
		add(p.Key, "raise", nil, p.Value)
	}
	for _, c := range step.Then {
		add(c.Key, "then", c.Old.Value, c.Next)
	}
	for _, c := range step.Each {
		add(c.Key, "each", c.Old.Value, c.Next)
	}
	for _, key := range step.Look {
		add(key, "look", nil, nil)
	}
	r, err := answered(ctx, s, "write", func(ctx context.Context) (reply, error) { return s.eval(ctx, stepScript, s.keys.of(named...), args...) })
	if err == nil && len(r) != 3+len(named) {
		err = unexpected(r)
	}
	if err != nil {
		return result, err
	}
	result.Met, result.Primary = r[2] == done, r.text(1)
	rest := r[3:]
	outcomes := func(n int, changes ...driver.Change) (all []driver.Outcome) {
		for i := range n {
			o := driver.Outcome{Now: cell(rest[i])}
			if i < len(changes) && rest[i] == done {
				o = driver.Outcome{Done: true, Now: driver.Cell{Value: changes[i].Next, Known: true}}
			}
			all = append(all, o)
		}
		rest = rest[n:]
		return all
	}
	for _, o := range outcomes(len(step.If)) {
		result.If = append(result.If, o.Now)
	}
	rest = rest[len(step.Raise):]
	result.Then, result.Each = outcomes(len(step.Then), step.Then...), outcomes(len(step.Each), step.Each...)
	for _, o := range outcomes(len(step.Look)) {
		result.Look = append(result.Look, o.Now)
	}
	return result, nil
}

// done is how a script says that it has made a change.
var done any = int64(1)

// cell reads a row from an answer. Of a tag that was lost nothing is known.
func cell(v any) driver.Cell {
	switch v := v.(type) {
	case string:
		return driver.Cell{Value: []byte(v), Known: true}
	case nil:
		return driver.Cell{Known: true}
	}
	return driver.Cell{}
}

func flag(is bool) string {
	if is {
		return "1"
	}
	return ""
}

func fields(keys []driver.Key) []any {
	all := make([]any, len(keys))
	for i, key := range keys {
		all[i] = field(key)
	}
	return all
}

// A command that may not be sent a second time.
type once struct{ *redis.Cmd }

// NoRetry is asked by go-redis.
func (once) NoRetry() bool { return true }

// A reply is what a script answered.
type reply []any

// text returns the element at i as text, "" where there is none.
func (r reply) text(i int) string {
	if i >= len(r) {
		return ""
	}
	s, _ := r[i].(string)
	return s
}

// eval runs a script. What a write answers counts only once as many replicas as
// Options.Wait asks for have it; the outcome counts as unknown otherwise.
func (s *space) eval(ctx context.Context, sc script, keys []string, args ...any) (reply, error) {
	wait := 0
	if sc.writes {
		wait = s.opts.Wait
	}
	r, err := s.send(ctx, "evalsha", sc.hash, keys, args, wait)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		r, err = s.send(ctx, "eval", sc.source, keys, args, wait)
	}
	if err != nil {
		return nil, err
	}
	list, ok := r.([]any)
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf("%w: redis: a script answered %T", hapax.ErrStoreCorrupt, r)
	}
	return list, s.refused(list)
}

// send sends one script and, in the same round trip to the same server, asks for its
// replicas: WAIT counts for the connection that wrote.
func (s *space) send(ctx context.Context, verb, text string, keys []string, args []any, wait int) (any, error) {
	words := append(make([]any, 0, 3+len(keys)+len(args)), verb, text, len(keys))
	for _, k := range keys {
		words = append(words, k)
	}
	cmd := once{redis.NewCmd(ctx, append(words, args...)...)}
	node, err := s.nodeOf(ctx, keys[0])
	if err != nil {
		return nil, err
	}
	patience := waitFor
	if at, ok := ctx.Deadline(); ok {
		patience = max(min(patience, time.Until(at)/2), time.Millisecond)
	}
	pipe := node.Pipeline()
	_ = pipe.Process(ctx, cmd)
	var acks *redis.Cmd
	if wait > 0 {
		acks = pipe.Do(ctx, "wait", wait, patience.Milliseconds())
	}
	_, failure := pipe.Exec(ctx)
	r, err := cmd.Result()
	if r == nil && err == nil { // nothing was sent
		err = failure
	}
	if err != nil {
		if c, ok := s.rdb.(*redis.ClusterClient); ok && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")) {
			c.ReloadState(ctx)
		}
		return nil, err
	}
	if acks == nil {
		return r, nil
	}
	if n, err := acks.Int(); err != nil {
		return nil, err
	} else if n < wait {
		return nil, fmt.Errorf("%w: redis: %d of %d replicas have the write after %v", hapax.ErrStoreUnavailable, n, wait, patience)
	}
	return r, nil
}
