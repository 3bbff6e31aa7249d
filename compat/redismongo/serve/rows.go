package serve

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo/collection"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/service"
)

// scanCount is about how many keys one request to Redis looks at.
const scanCount = 1000

// maxShown bounds what is shown of a value that cannot be read, in bytes.
const maxShown = 50

// A row is what both systems tell of a tag.
type row struct {
	used

	document bool // there is one
	hash     bool // there is one
	step     int64
	ignored  []string // what means nothing here
	err      error    // why it cannot be carried over
}

// used is how far the numbers of a tag are gone; it changes while somebody issues.
type used struct {
	max       int64 // of the document
	timestamp int64
	cur, last int64 // of the hash: the last number taken, and that of its segments
}

// top returns the highest number that may be used.
func (u used) top() int64 { return max(u.max, u.cur, u.last) }

// String tells of a row in a comment and in a message.
func (r *row) String() string {
	if r.err != nil {
		return "cannot be carried over: " + hapax.Message(r.err)
	}
	text := fmt.Sprintf("numbers up to %d", r.top())
	switch {
	case r.document && r.hash:
		text += fmt.Sprintf(" (the document says %d, the hash %d of %d)", r.max, r.cur, r.last)
	case r.document:
		text += ", no hash"
	default:
		text += fmt.Sprintf(", no document (the hash says %d of %d)", r.cur, r.last)
	}
	if r.step > 0 {
		text += fmt.Sprintf(", step %d", r.step)
	}
	if len(r.ignored) > 0 {
		text += "; without effect here: " + comment(strings.Join(r.ignored, ", "))
	}
	return text
}

// definition returns the native tag.
func (r *row) definition(name string, margin int64) (hapax.Tag, error) {
	if r.err != nil {
		return hapax.Tag{}, r.err
	}
	def := hapax.Tag{Name: name, Step: r.step}
	step := r.step
	if step == 0 {
		step = hapax.DefaultStep
	}
	top := r.top()
	if top >= hapax.MaxMark {
		return def, &hapax.ValueError{Field: "last number", Value: top, Allowed: fmt.Sprintf("less than %d", int64(hapax.MaxMark)), Err: hapax.ErrInvalidArgument}
	}
	var err error
	if def.Mark, err = moves.Above(top+1, step, margin); err != nil {
		return def, err
	}
	return service.WithStrategy(def, strategyName)
}

// sources are both systems.
type sources struct {
	collection     *mongo.Collection
	rdb            redis.UniversalClient
	prefix, suffix string // of the hashes' names
}

// all reads both. A tag that only one of them knows counts, too.
func (s sources) all(ctx context.Context) (map[string]*row, error) {
	documents, err := collection.Read(ctx, s.collection)
	if err != nil {
		return nil, fmt.Errorf("the collection %s: %w", s.collection.Name(), err)
	}
	rows := map[string]*row{}
	for name, d := range collection.Merge(documents) {
		rows[name] = &row{used: used{max: d.Max, timestamp: d.Timestamp}, document: true, step: d.Step, ignored: d.Others, err: d.Err}
	}
	names, err := s.names(ctx)
	if err != nil {
		return nil, fmt.Errorf("the hashes: %w: redis: %w", hapax.ErrStoreUnavailable, err)
	}
	for name := range rows {
		names[name] = true
	}
	for name := range names {
		h, err := s.hash(ctx, name)
		switch {
		case err != nil && !errors.Is(err, hapax.ErrInvalidArgument):
			return nil, fmt.Errorf("the hashes: %w: redis: %w", hapax.ErrStoreUnavailable, err)
		case err == nil && h == nil:
			continue // no cursor
		}
		r := rows[name]
		if r == nil {
			r = &row{}
			rows[name] = r
		}
		if err != nil {
			r.err = errors.Join(r.err, err)
			continue
		}
		r.hash, r.cur, r.last = true, h.cur, h.last
		if h.step > 0 {
			r.step = h.step
		}
		r.ignored = append(r.ignored, h.ignored...)
	}
	if len(rows) == 0 {
		return nil, &hapax.ValueError{Field: "--collection", Value: s.collection.Name(), Allowed: "a collection with documents, or --hash with the names of hashes: there is neither", Err: hapax.ErrInvalidArgument}
	}
	return rows, nil
}

// names returns the tags whose names are those of hashes.
func (s sources) names(ctx context.Context) (map[string]bool, error) {
	all := map[string]bool{}
	pattern := globQuoted.Replace(s.prefix) + "*" + globQuoted.Replace(s.suffix)
	found := make(chan string)
	scanned := make(chan error, 1)
	scan := func(ctx context.Context, c redis.Cmdable) error {
		keys := c.ScanType(ctx, 0, pattern, scanCount, "hash").Iterator()
		for keys.Next(ctx) {
			found <- keys.Val()
		}
		return keys.Err()
	}
	go func() {
		defer close(found)
		if c, ok := s.rdb.(*redis.ClusterClient); ok {
			scanned <- c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return scan(ctx, node) })
			return
		}
		scanned <- scan(ctx, s.rdb)
	}()
	for key := range found {
		if name, ok := strings.CutPrefix(key, s.prefix); ok && len(name) > len(s.suffix) {
			all[strings.TrimSuffix(name, s.suffix)] = true
		}
	}
	return all, <-scanned
}

// globQuoted quotes what means something in a pattern of Redis.
var globQuoted = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// A cursor is a hash.
type cursor struct {
	cur, last, step int64
	ignored         []string
}

// hashFields are the fields of a hash that mean something: the original's, and nmax, where
// the hash is hapax's.
var hashFields = []string{"cur", "max", "step", "nmax"}

// hash reads the hash of a tag; nil if there is none, or one that is no cursor.
func (s sources) hash(ctx context.Context, name string) (*cursor, error) {
	key := s.prefix + name + s.suffix
	values, err := s.rdb.HMGet(ctx, key, hashFields...).Result()
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return nil, &hapax.ValueError{Field: key, Value: "(no hash)", Allowed: "a hash in Redis", Err: hapax.ErrInvalidArgument}
	case err != nil:
		return nil, err
	}
	numbers := make([]int64, len(hashFields))
	for k, field := range hashFields {
		text, ok := values[k].(string)
		if !ok {
			continue
		}
		if numbers[k], err = strconv.ParseInt(text, 10, 64); err != nil || numbers[k] < 0 {
			return nil, &hapax.ValueError{Field: field + " of the hash " + key, Value: text[:min(len(text), maxShown)], Allowed: "a whole number from 0", Err: hapax.ErrInvalidArgument}
		}
	}
	if values[0] == nil && values[1] == nil {
		return nil, nil
	}
	c := &cursor{cur: numbers[0], last: max(numbers[1], numbers[3]), step: numbers[2]}
	fields, err := s.rdb.HKeys(ctx, key).Result()
	for _, field := range fields {
		if !known[field] {
			c.ignored = append(c.ignored, field)
		}
	}
	return c, err
}

// known are the fields of a hash of the original, and of hapax.
var known = map[string]bool{
	"cur": true, "max": true, "step": true,
	"srv": true, "ncur": true, "nmax": true, "store": true, "load": true, "until": true, "at": true,
}
