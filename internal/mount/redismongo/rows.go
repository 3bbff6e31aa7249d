package redismongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/collection"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/service/define"
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

	openDocument, openHash bool // the old service could issue from it
	closed                 bool // one of them is closed for the old service
	step                   int64
	stores                 []string // IDs of the hapax stores that have taken one of them
	ignored                []string // what means nothing here
	err                    error    // why it cannot be carried over
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
	if r.closed {
		text += ", closed for the old service"
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
		return def, tooHigh(top)
	}
	var err error
	if def.Mark, err = moves.Above(top+1, step, margin); err != nil {
		return def, err
	}
	return define.WithStrategy(def, strategyName)
}

func tooHigh(top int64) error {
	return &hapax.ValueError{Field: "last number", Value: top, Allowed: fmt.Sprintf("less than %d", int64(hapax.MaxMark)), Err: hapax.ErrInvalidArgument}
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
		rows[name] = ofDocument(d)
	}
	names, err := s.names(ctx)
	if err != nil {
		return nil, fmt.Errorf("the hashes: %w: redis: %w", hapax.ErrStoreUnavailable, err)
	}
	// The scan passes over keys that are no hashes; under the name of a document one is a mistake to be told.
	for name := range rows {
		names[name] = true
	}
	for name := range names {
		r := cmp.Or(rows[name], new(row))
		switch found, err := s.addHash(ctx, name, r); {
		case err != nil:
			return nil, err
		case found:
			rows[name] = r
		}
	}
	if len(rows) == 0 {
		return nil, &hapax.ValueError{Field: "--collection", Value: s.collection.Name(), Allowed: "a collection with documents, or --hash with the names of hashes: there is neither", Err: hapax.ErrInvalidArgument}
	}
	return rows, nil
}

// row reads the two sources of one tag.
func (s sources) row(ctx context.Context, name string) (*row, error) {
	documents, err := collection.Read(ctx, s.collection, name)
	if err != nil {
		return nil, fmt.Errorf("the collection %s: %w", s.collection.Name(), err)
	}
	r := new(row)
	if d, found := collection.Merge(documents)[name]; found {
		r = ofDocument(d)
	}
	_, err = s.addHash(ctx, name, r)
	return r, err
}

func ofDocument(d collection.Document) *row {
	return &row{
		used: used{max: d.Max, timestamp: d.Timestamp}, document: true, openDocument: !d.Closed, closed: d.Closed,
		step: d.Step, stores: d.Stores, ignored: d.Others, err: d.Err,
	}
}

// addHash adds what the hash of a tag says, and reports whether there is one that counts.
func (s sources) addHash(ctx context.Context, name string, r *row) (bool, error) {
	h, err := readHash(ctx, s.rdb, s.prefix+name+s.suffix)
	switch {
	case errors.Is(err, hapax.ErrInvalidArgument):
		// It is listed with its mistake: the other tags can be carried over.
		r.err = errors.Join(r.err, err)
		return true, nil
	case err != nil:
		return false, fmt.Errorf("the hashes: %w: redis: %w", hapax.ErrStoreUnavailable, err)
	case h == nil:
		return false, nil // no cursor
	}
	r.hash, r.cur, r.last = true, h.cur, h.last
	r.openHash, r.closed = !h.closed, r.closed || h.closed
	if h.step > 0 {
		r.step = h.step
	}
	if h.store != "" {
		r.stores = append(r.stores, h.store)
	}
	r.ignored = append(r.ignored, h.ignored...)
	return true, nil
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
		// A scan of a cluster sees the keys of one node alone.
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
	end             int64 // of the segment that cur is in
	closed          bool
	store           string // the ID of the hapax store that has taken it
	token           int64  // the token of the tag then
	ignored         []string
}

// hashFields are the fields of a hash that mean something: the original's, and nmax, where
// the hash is hapax's.
var hashFields = []string{"cur", "max", "step", "nmax", fieldCur, fieldMax, fieldStore, fieldToken}

// A hash that is closed has the largest number as cur and max, which the old service cannot
// add to, what they were in two fields of its own, and in a third one the ID of the hapax
// store that has taken it, and in a fourth the token of its tag then. Those stay where an old
// service writes cur and max again.
const (
	closedAt   = math.MaxInt64
	fieldCur   = "hapax_cur"
	fieldMax   = "hapax_max"
	fieldStore = "hapax_store"
	fieldToken = "hapax_token"
)

// isClosed reports whether a hash with these fields is closed: it has the first of hapax's fields,
// and cur is the largest number, or no number any more. An old service's script may fail after it
// has raised max, or write what Lua makes of the sum, and Redis takes none of that back.
func isClosed(values []any) bool {
	cur, there := values[0].(string)
	n, err := strconv.ParseInt(cur, 10, 64)
	return there && values[4] != nil && (err != nil || n == closedAt)
}

// readHash reads the hash of a tag; nil if there is none, or one that is no cursor.
func readHash(ctx context.Context, rdb redis.Cmdable, key string) (*cursor, error) {
	values, err := rdb.HMGet(ctx, key, hashFields...).Result()
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return nil, &hapax.ValueError{Field: key, Value: "(no hash)", Allowed: "a hash in Redis", Err: hapax.ErrInvalidArgument}
	case err != nil:
		return nil, err
	}
	numbers := make([]int64, len(hashFields))
	closed := isClosed(values)
	for k, field := range hashFields {
		text, ok := values[k].(string)
		if !ok || field == fieldStore || closed && (field == "cur" || field == "max") {
			continue
		}
		if numbers[k], err = strconv.ParseInt(text, 10, 64); err != nil || numbers[k] < 0 {
			return nil, &hapax.ValueError{Field: field + " of the hash " + key, Value: text[:min(len(text), maxShown)], Allowed: "a whole number from 0", Err: hapax.ErrInvalidArgument}
		}
	}
	if values[0] == nil && values[1] == nil {
		return nil, nil
	}
	c := &cursor{cur: numbers[0], last: max(numbers[1], numbers[3]), step: numbers[2], end: numbers[1], token: numbers[7]}
	c.store, _ = values[6].(string)
	if closed {
		c.cur, c.last, c.closed = numbers[4], numbers[5], true
	}
	fields, err := rdb.HKeys(ctx, key).Result()
	for _, field := range fields {
		if !known[field] {
			c.ignored = append(c.ignored, field)
		}
	}
	return c, err
}

// known are the fields of a hash of the original, and of hapax.
var known = map[string]bool{
	"cur": true, "max": true, "step": true, fieldCur: true, fieldMax: true, fieldStore: true, fieldToken: true,
	"srv": true, "ncur": true, "nmax": true, "store": true, "load": true, "until": true, "at": true,
}
