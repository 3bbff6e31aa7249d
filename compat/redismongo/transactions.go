package redismongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

// conflictPause is the longest wait of a forestalled caller before the next try.
const conflictPause = 4 * time.Millisecond

// transactions is the counter of a Redis that runs no scripts: WATCH, a look at the hash,
// and MULTI to EXEC, which writes only if nobody has written to the hash since WATCH.
//
// The identity of the server is read twice: with the hash, and in the transaction itself.
// Where it changed in between, what was written is void, because it names the server
// as it was; so what was taken is not used.
type transactions struct {
	rdb     redis.UniversalClient
	key     string
	timeout time.Duration

	turn chan struct{} // held by the caller that takes: others of this process would only forestall it
}

func newTransactions(rdb redis.UniversalClient, key string, timeout time.Duration) *transactions {
	return &transactions{rdb, key, timeout, make(chan struct{}, 1)}
}

func (*transactions) commands() string {
	return "WATCH, UNWATCH, MULTI, EXEC, INFO, TIME, HMGET, HSET and HDEL"
}

func (t *transactions) take(ctx context.Context, ask asking) (got taking, err error) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return got, context.Cause(ctx)
	}
	err = t.try(ctx, func(h hash) (c change) {
		got, c = h.take(ask)
		return c
	})
	if err != nil {
		return taking{}, err
	}
	return got, nil
}

func (t *transactions) install(ctx context.Context, in installing) (top string, err error) {
	err = t.try(ctx, func(h hash) (c change) {
		top, c = h.install(in)
		return c
	})
	return top, err
}

// errForestalled tells that the hash, or who the server is, changed during a try.
var errForestalled = errors.New("the hash has changed meanwhile")

// try lets decide look at the hash, and makes the change that it returns, again and again
// until nobody comes between. Only then is what decide found true.
func (t *transactions) try(ctx context.Context, decide func(hash) change) error {
	for {
		err := t.once(ctx, decide)
		if !errors.Is(err, redis.TxFailedErr) && !errors.Is(err, errForestalled) {
			return err
		}
		select {
		case <-time.After(rand.N(conflictPause)): // so that two who forestall each other get apart
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// once is one try. The client keeps to one connection from WATCH to EXEC, and never
// sends EXEC again by itself.
func (t *transactions) once(ctx context.Context, decide func(hash) change) error {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	return t.rdb.Watch(ctx, func(tx *redis.Tx) error {
		h, err := t.look(ctx, tx)
		if err != nil {
			return err
		}
		c := decide(h)
		if c.isEmpty() {
			return nil
		}
		var server identity
		sent, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			server = askIdentity(ctx, p)
			if len(c.del) > 0 {
				p.HDel(ctx, t.key, c.del...)
			}
			if len(c.set) > 0 {
				p.HSet(ctx, t.key, c.set)
			}
			return nil
		})
		if err != nil {
			for _, cmd := range sent { // EXEC only tells that one of them was refused
				if notAllowed(cmd.Err()) {
					return cmd.Err()
				}
			}
			return err
		}
		is, err := server.text()
		if err == nil && is != h.server {
			err = errForestalled
		}
		return err
	}, watched(t.key)...)
}

// watched returns the keys to watch.
var watched = func(key string) []string { return []string{key} }

// An identity is the answer of a server that was asked who it is.
type identity struct{ server, replication *redis.StringCmd }

func askIdentity(ctx context.Context, p redis.Pipeliner) identity {
	return identity{p.Info(ctx, "server"), p.Info(ctx, "replication")}
}

// text returns the process and its history of replication.
func (i identity) text() (string, error) {
	run, history := infoWord(i.server.Val(), "run_id"), infoWord(i.replication.Val(), "master_replid")
	if run == "" || history == "" {
		return "", fmt.Errorf("%w: redis: INFO tells no run_id or no master_replid", hapax.ErrStoreCorrupt)
	}
	return run + " " + history, nil
}

// infoWord returns a value of INFO; empty if there is none.
func infoWord(info, name string) string {
	_, rest, _ := strings.Cut(info, "\n"+name+":")
	word, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(word)
}

// fields are those of the hash that count, in the order of the struct below.
var fields = []string{"store", "srv", "load", "cur", "max", "step", "ncur", "nmax", "at", "until"}

// A hash is what Redis has of a tag.
type hash struct {
	server string // as it is now
	now    int64  // ms of the server's clock

	store, srv, load                      string
	cur, max, step, ncur, nmax, at, until int64 // -1: there is none
}

// look reads the hash and who the server is.
func (t *transactions) look(ctx context.Context, tx *redis.Tx) (h hash, err error) {
	p := tx.Pipeline()
	server, now, values := askIdentity(ctx, p), p.Time(ctx), p.HMGet(ctx, t.key, fields...)
	if _, err := p.Exec(ctx); err != nil {
		return h, err
	}
	if h.server, err = server.text(); err != nil {
		return h, err
	}
	h.now = now.Val().UnixMilli()
	found := values.Val()
	if len(found) != len(fields) {
		return h, fmt.Errorf("%w: redis: HMGET answered with %d fields, want %d", hapax.ErrStoreCorrupt, len(found), len(fields))
	}
	texts := []*string{&h.store, &h.srv, &h.load}
	for k, to := range texts {
		*to, _ = found[k].(string)
	}
	for k, to := range []*int64{&h.cur, &h.max, &h.step, &h.ncur, &h.nmax, &h.at, &h.until} {
		*to = -1
		text, there := found[len(texts)+k].(string)
		if !there {
			continue
		}
		if *to, err = strconv.ParseInt(text, 10, 64); err != nil || *to < 0 {
			return h, fmt.Errorf("%w: redis: %s of the hash %s is %.50q; want a number from 0", hapax.ErrStoreCorrupt, fields[len(texts)+k], t.key, text)
		}
	}
	return h, nil
}

// A change is what is to be written to the hash; first del, then set.
type change struct {
	del []string
	set map[string]any
}

func (c *change) isEmpty() bool { return len(c.del)+len(c.set) == 0 }

func (c *change) put(field string, value any) {
	if c.set == nil {
		c.set = map[string]any{}
	}
	c.set[field] = value
}

// held reports whether there is a segment that this server was given.
func (h hash) held() bool { return h.srv == h.server && h.cur >= 0 && h.max >= 0 && h.step >= 0 }

// take is takeScript.
func (h hash) take(ask asking) (got taking, c change) {
	if h.store != "" && ask.store != "" && h.store != ask.store {
		return taking{other: h.store}, c
	}
	held := h.held()
	if held && h.cur < ask.seen {
		c.del = append(c.del, "srv")
		held = false
	}
	var left int64
	if held {
		left = h.max - h.cur
		if left <= 0 && h.ncur >= h.max && h.nmax >= 0 {
			left = h.nmax - h.ncur
			h.cur, h.max, h.step = h.ncur, h.nmax, left
			c.put("cur", h.cur)
			c.put("max", h.max)
			c.put("step", h.step)
			c.del = append(c.del, "ncur", "nmax")
			h.ncur = -1
		}
	}
	got.dry = left <= 0
	if got.dry {
		h.ncur = -1
	} else if got.last, got.n = h.cur, int(min(int64(ask.n), left)); got.n > 0 {
		got.last += int64(got.n)
		left -= int64(got.n)
		c.put("cur", got.last)
	}
	step := max(h.step, 0)
	used := step - left
	if h.step < 0 {
		used = 0
	}
	// In floating point, as in the script: a hundred times a large segment overflows 64 bits.
	due := left <= 0 || float64(used)*100 >= float64(ask.threshold)*float64(step)
	given := h.load != "" && strings.HasSuffix(h.load, h.server) && h.until > h.now
	if due && !(held && h.ncur >= 0) && !given {
		c.put("load", ask.right+" "+h.server)
		c.put("until", h.now+rightFor.Milliseconds())
		got.fetch = &fetching{h.server, step, -1}
		if h.at >= 0 {
			got.fetch.age = time.Duration(h.now-h.at) * time.Millisecond
		}
	}
	return got, c
}

// install is installScript.
func (h hash) install(in installing) (top string, c change) {
	if h.store != "" && in.store != "" && h.store != in.store || in.server != h.server || h.load != in.right+" "+h.server {
		return "", c
	}
	c.del = []string{"load", "until"}
	if in.grant.Len() == 0 {
		return "", c
	}
	if known := cmp.Or(max(h.nmax, 0), h.max); in.grant.Lo-1 < known {
		return strconv.FormatInt(known, 10), c
	}
	if h.srv == h.server {
		c.put("at", h.now)
	} else {
		c.del = append(c.del, "at") // see installScript
	}
	if in.store != "" {
		c.put("store", in.store)
	}
	if h.srv == h.server && h.cur >= 0 && h.max > h.cur {
		c.put("ncur", in.grant.Lo-1)
		c.put("nmax", in.grant.Hi-1)
		return "", c
	}
	c.put("srv", h.server)
	c.put("cur", in.grant.Lo-1)
	c.put("max", in.grant.Hi-1)
	c.put("step", in.grant.Len())
	c.del = append(c.del, "ncur", "nmax")
	return "", c
}
