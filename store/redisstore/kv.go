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
	pageBytes = 1 << 20 // about how much of values it answers
	mend      = "mend"  // has a script take a tag that was lost for one that there never was
)

// A space is the store's keys.
type space struct {
	calls driver.Calls
	rdb   redis.UniversalClient // a *redis.Client or a *redis.ClusterClient
	opts  Options
	id    string

	life    context.Context // ends when the store is closed
	end     context.CancelFunc
	mu      sync.Mutex     // guards end, and running.Add against running.Wait
	running sync.WaitGroup // see answered
}

// key returns the name of a key. The braces have a Cluster keep all of them on one shard.
func (s *space) key(name string) string { return s.opts.Prefix + "{hapax}:" + name }

// field returns what scripts call a row, and the hash of all rows one that is no tag. Names have
// no control characters.
func field(key driver.Key) string { return key.Table + "\x00" + key.Name }

// A view of a space implements driver.KV.
type view struct {
	*space
	how string // mend, or ""
}

// Get implements driver.KV. It is one round trip, and always answered by the primary. A survey is
// not told of a tag that was lost, so that whoever knows it finds that the store lacks it.
func (v view) Get(ctx context.Context, from driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	if from == driver.Lagging {
		v.how = mend
	}
	return v.get(ctx, v.how, keys...)
}

// Step implements driver.KV. It is one round trip.
func (v view) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	return v.run(ctx, stepScript, v.how, step)
}

func (s *space) get(ctx context.Context, how string, keys ...driver.Key) ([]driver.Cell, error) {
	reading := stepScript
	reading.writes = false
	r, err := s.run(ctx, reading, how, driver.Step{Look: keys})
	for i, c := range r.Look {
		if !c.Known {
			return nil, fmt.Errorf("%w: redis: tag %q exists by the index and its key is gone", hapax.ErrStoreRolledBack, keys[i].Name)
		}
	}
	return r.Look, err
}

// Scan implements driver.KV. A round trip brings 500 rows, or about a MiB; tags, whose keys
// have to be named to the server, take two.
func (s *space) Scan(ctx context.Context, table, after string, limit int) (rows []driver.Row, err error) {
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
}

// page returns up to n rows after the given one, those without a value that are gone by now, and
// whether there may be more.
func (s *space) page(ctx context.Context, table, after string, n int) (rows []driver.Row, more bool, err error) {
	what, prefix, to := "rows", field(driver.Key{Table: table}), "("+table+"\x01"
	if table == "" {
		what, prefix, to = "tags", "", "+"
	}
	r, err := answered(ctx, s, "list", func(ctx context.Context) (reply, error) {
		return s.eval(ctx, listScript, nil, s.id, format, "", what, "("+prefix+after, to, n, pageBytes)
	})
	if err != nil {
		return nil, false, err
	}
	more = r.text(0) == "more"
	if len(r) == 1 {
		return nil, false, nil
	}
	if table != "" {
		for i := 1; i+1 < len(r); i += 2 {
			rows = append(rows, driver.Row{Name: strings.TrimPrefix(r.text(i), prefix), Value: []byte(r.text(i + 1))})
		}
		return rows, more, nil
	}
	keys := make([]driver.Key, len(r)-1)
	for i := range keys {
		keys[i].Name = r.text(i + 1)
	}
	cells, err := s.get(ctx, mend, keys...)
	for i, c := range cells {
		rows = append(rows, driver.Row{Name: keys[i].Name, Value: c.Value})
	}
	return rows, more, err
}

// run does a step by a script.
func (s *space) run(ctx context.Context, sc script, how string, step driver.Step) (result driver.Result, err error) {
	var rows []driver.Key
	args := append(make([]any, 0, 32+4*len(step.Each)), s.id, format, how)
	add := func(key driver.Key, what string, old, next []byte) {
		rows, args = append(rows, key), append(args, field(key), what, old, next)
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
	r, err := answered(ctx, s, "use rows", func(ctx context.Context) (reply, error) { return s.eval(ctx, sc, rows, args...) })
	if err == nil && len(r) != 3+len(rows) {
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

// A command that may not be sent a second time.
type once struct{ *redis.Cmd }

// NoRetry is asked by go-redis.
func (once) NoRetry() bool { return true }

// eval runs a script on rows. What a write answers counts only once as many replicas as
// Options.Wait asks for have it; the outcome counts as unknown otherwise.
func (s *space) eval(ctx context.Context, sc script, rows []driver.Key, args ...any) (reply, error) {
	keys := []any{s.key("store"), s.key("rows"), s.key("names"), s.key("tags")}
	for _, row := range rows {
		if row.Table == "" {
			keys = append(keys, s.key("tag:"+row.Name))
		}
	}
	words := append(append(make([]any, 0, 3+len(keys)+len(args)), "evalsha", sc.hash, len(keys)), append(keys, args...)...)
	wait := 0
	if sc.writes {
		wait = s.opts.Wait
	}
	r, err := s.send(ctx, words, wait)
	// The server has refused the hash and carried out nothing, so that to send the script itself is no
	// repetition.
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		words[0], words[1] = "eval", sc.source
		r, err = s.send(ctx, words, wait)
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

// send sends a script and, in the same round trip to the same server, asks for its
// replicas: WAIT counts for the connection that wrote.
func (s *space) send(ctx context.Context, words []any, wait int) (any, error) {
	cmd := once{redis.NewCmd(ctx, words...)}
	node, err := s.nodeOf(ctx, s.key("store"))
	if err != nil {
		return nil, err
	}
	patience := waitFor
	if at, ok := ctx.Deadline(); ok {
		// Half of the time that is left: the answer has to come back within it, too.
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
		// Sent to the node itself, the command follows no redirection: the map of slots is read anew for the
		// next call.
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
