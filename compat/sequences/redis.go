package sequences

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/redisstore"
)

// redisCounters reads the counters of INCR.
type redisCounters struct {
	db   redis.UniversalClient
	opts Options
}

// Limits of reading keys.
const (
	scanned     = 1000
	maxCounters = 100_000
)

func openRedis(ctx context.Context, raw string, o Options) (*redisCounters, error) {
	db, err := redisstore.NewClient(raw, o.Timeout)
	if err != nil {
		return nil, err
	}
	if err := db.Ping(ctx).Err(); err != nil {
		_ = db.Close()
		return nil, dbError(err)
	}
	return &redisCounters{db, o}, nil
}

func (r *redisCounters) Close() error { return r.db.Close() }

// Sources implements Database. Keys that hold no whole number are named.
func (r *redisCounters) Sources(ctx context.Context, like string) (all []*Source, others []string, err error) {
	if like == "" {
		return nil, nil, &hapax.ValueError{Field: "--like", Value: "", Allowed: "a pattern of the counters' keys, such as 'counter:*': a Redis has keys of all kinds", Err: hapax.ErrInvalidArgument}
	}
	var keys []string
	scan := func(ctx context.Context, c redis.Cmdable) error {
		it := c.Scan(ctx, 0, like, scanned).Iterator()
		for it.Next(ctx) {
			if keys = append(keys, it.Val()); len(keys) > maxCounters {
				return &hapax.ValueError{Field: "--like", Value: like, Allowed: fmt.Sprintf("a pattern of up to %d keys", maxCounters), Err: hapax.ErrInvalidArgument}
			}
		}
		return it.Err()
	}
	if cluster, ok := r.db.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return scan(ctx, c) })
	} else {
		err = scan(ctx, r.db)
	}
	if err != nil {
		return nil, nil, dbError(err)
	}
	slices.Sort(keys)
	// SCAN may bring a key more than once.
	for _, key := range slices.Compact(keys) {
		p := part{name: key, step: 1, cache: 1, max: math.MaxInt64}
		value, err := r.db.Get(ctx, key).Result()
		if err == nil {
			p.position, p.closed, err = counterOf(value)
		}
		if err != nil {
			others = append(others, fmt.Sprintf("%s: it holds no whole number", key))
			continue
		}
		s := &Source{Tag: key, Kind: "counter", Names: []string{key}, parts: []part{p}}
		if p.closed != nil {
			s.Tag = p.closed.Tag
		}
		ends, err := r.db.PTTL(ctx, key).Result()
		switch {
		case err != nil:
			return nil, nil, dbError(err)
		case ends > 0:
			s.wrong("%s ends in %v, and then begins at 1 again: a tag does so with a code that has a period", key, ends.Round(time.Second))
		}
		s.note("which columns it feeds is not known here: see that they hold nothing above it (hapax audit --column)")
		s.conclude()
		all = append(all, s)
	}
	return all, others, nil
}

// counterOf reads a counter, or what is in its place.
func counterOf(value string) (int64, *Mark, error) {
	if m := readMark(value); m != nil {
		return m.At, m, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return n, nil, err
}

// Position implements Database.
func (r *redisCounters) Position(ctx context.Context, s *Source) (int64, error) {
	value, err := r.db.Get(ctx, s.parts[0].name).Result()
	if err != nil {
		return 0, dbError(err)
	}
	at, _, err := counterOf(value)
	return at, err
}

// shutCounter puts a text in a counter's place, which INCR refuses, in one step: a counter
// that was renamed away would begin at 1 again. What it was stands beside it, by RENAME.
var shutCounter = redis.NewScript(shutLua)

const shutLua = `
local v = redis.call('GET', KEYS[1])
if not v then return redis.error_reply('ERR the counter is gone') end
local n = tonumber(v)
if not n then return string.find(v, ARGV[4], 1, true) and 'shut' or 'taken ' .. v end
if n >= tonumber(ARGV[1]) then return 'past ' .. v end
redis.call('SET', KEYS[1], (string.gsub(ARGV[2], ARGV[3], '"at":' .. v)))
return 'shut'`

var openCounter = redis.NewScript(`
local v = redis.call('GET', KEYS[1])
if v == ARGV[2] then redis.call('SET', KEYS[1], ARGV[1]) return 'open' end
return 'taken ' .. (v or '')`)

// oneCounter refuses other ways: nothing bounds a counter.
func oneCounter(how Switch) error {
	if how == Stop {
		return nil
	}
	return fmt.Errorf("%w: a counter has no bound and no second increment: choose --switch stop", hapax.ErrNotSupported)
}

func (s *Source) counterMark(o Options, first int64) *Mark {
	return &Mark{Tag: s.Tag, How: Stop, Store: o.Store, First: first, Token: o.Token, At: atLater, Step: 1}
}

// atPattern is atText as a pattern of Lua.
var atPattern = strings.ReplaceAll(atText, "-", "%-")

// Steps implements Database. It is what Shut runs.
func (r *redisCounters) Steps(s *Source, how Switch, first int64) ([]string, error) {
	if err := oneCounter(how); err != nil || s.Closed != nil {
		return nil, err
	}
	mark := s.counterMark(r.opts, first)
	return []string{fmt.Sprintf("EVAL %s 1 %s %d %s %s %s", redisText(shutLua), redisText(s.parts[0].name), first, redisText(mark.text()), redisText(atPattern), redisText(mark.own()))}, nil
}

// Script implements Database. redis-cli tells of an error by its words alone.
func (r *redisCounters) Script(variable string, steps []string) string {
	var b strings.Builder
	for _, step := range steps {
		document, text := hereDocument(step)
		fmt.Fprintf(&b, "%s %s | redis-cli -u \"$%s\" | tee /dev/stderr | grep -qx 'shut'\n%s", ForStore, document, variable, text)
	}
	return b.String()
}

// Shut implements Database.
func (r *redisCounters) Shut(ctx context.Context, s *Source, how Switch, first int64) error {
	if err := oneCounter(how); err != nil || s.Closed != nil {
		return err
	}
	mark := s.counterMark(r.opts, first)
	said, err := shutCounter.Run(ctx, r.db, []string{s.parts[0].name}, first, mark.text(), atPattern, mark.own()).Text()
	if err != nil {
		return dbError(err)
	}
	if at, past := strings.CutPrefix(said, "past "); past {
		n, _ := strconv.ParseInt(at, 10, 64)
		return &PassedError{At: n}
	}
	return counterTaken(said)
}

// counterTaken returns the error that a script's answer stands for.
func counterTaken(said string) error {
	if by, ok := strings.CutPrefix(said, "taken "); ok {
		return &TakenError{By: readMark(by)}
	}
	return nil
}

// BackSteps implements Database.
func (r *redisCounters) BackSteps(s *Source, next int64) ([]string, error) {
	return []string{fmt.Sprintf("SET %s %d", redisText(s.parts[0].name), next-1)}, nil
}

// Reopen implements Database.
func (r *redisCounters) Reopen(ctx context.Context, s *Source, next int64) error {
	said, err := openCounter.Run(ctx, r.db, []string{s.parts[0].name}, next-1, s.Closed.text()).Text()
	if err != nil {
		return dbError(err)
	}
	return counterTaken(said)
}
