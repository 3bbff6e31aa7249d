// Package tinyid issues numbers from the tables of Didi TinyID, beside TinyID's
// own servers.
//
// A Store is a hapax.SegmentStore over tiny_id_info, as it is, in one or several
// databases. A segment is taken as TinyID does: the row is read, and then changed
// only if neither its max_id nor its version has changed since:
//
//	UPDATE tiny_id_info SET max_id = …, update_time = …, version = version + 1
//	WHERE id = … AND max_id = … AND version = … AND biz_type = …
//
// Each of the two is a transaction of its own, so that a lost race is seen by the
// next read. The segment is (old max_id, new max_id]; of it those numbers are
// issued that leave remainder when divided by delta. So any number of TinyID
// servers and hapax nodes share a table.
//
// # Several databases
//
// Each database has a line of its own, and its rows have a remainder of their
// own: that is what keeps them apart. A Store takes segments from one database
// until that fails, and then goes over to the next one; a database that failed is
// left alone for a growing while. Rows of one biz_type whose numbers would meet
// are refused (ErrStoreUnsafe). On another database the next segment begins above
// all that this Store was granted before: numbers of one Store only grow.
//
// The tables have no room for an identity, a tombstone or a fencing token. A
// Store remembers what it was granted of each row, in Options.Witness where that is
// set, and refuses one that is behind it (ErrStoreRolledBack); nothing is ever
// handed back; and rows are inserted by whoever runs the tables, never by use.
package tinyid

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/mysqldb"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

var _ hapax.SegmentStore = (*Store)(nil)

const (
	maxDatabases = 64
	raceAttempts = 200                    // lost races for a row before giving up
	firstBackoff = 100 * time.Millisecond // how long a database that failed is left alone at first
	lastBackoff  = 10 * time.Second
	failoverIn   = time.Second // how long one of several databases may take to answer
	surveyIn     = 300 * time.Millisecond
)

// Options tune a Store. The zero value suits most uses.
type Options struct {
	// Timeout bounds one answer of one database; default 5 s, or 1 s where there
	// are several databases.
	Timeout time.Duration

	// AcceptFailover lets a database go on when another server answers than the
	// one met first. It is safe only where the new primary has every commit that
	// the old one acknowledged: by default that is ErrStoreReplaced.
	AcceptFailover bool

	// Witness, if set, remembers what was granted, and outlives the process. A row
	// that is behind it is refused, and that row alone, also after a restart, until
	// Adopt. It stays the caller's to close, after the store.
	Witness *witness.Witness

	// Warn receives what an operator should know, with a stable code:
	// "not_durable" (a server may lose what it acknowledged), "database_down",
	// "bad_row" and "fenced" (the witness refuses a row from now on).
	Warn func(code, message string)
}

// A database is one of those that the rows are in.
type database struct {
	*mysqldb.DB

	failures int         // in a row; guarded by Store.mu
	retryAt  time.Time   // guarded by Store.mu
	last     []row       // as Tags read them last; guarded by Store.mu
	checked  atomic.Bool // its rows were compared with the marks
}

// Store grants segments of the biz_types in tiny_id_info.
type Store struct {
	dbs    []*database
	galera bool // in a test, whatever the databases are
	warn   func(code, message string)
	marks  *witness.Marks // how far each class of each biz_type was granted
	before marked         // what the witness knew when the store was opened

	mu      sync.Mutex // guards the fields below, and the health of dbs
	current int        // the database that segments are taken from
	known   map[string]*known
}

// known is a Store's memory of a biz_type.
type known struct {
	mark     int64   // all numbers below were granted here, or passed over
	surveyed bool    // the other databases were looked at
	classes  []class // by database
	compared []bool  // that class was compared with the marks of others
}

// Open opens the databases, each given as mysql://user:password@host:port/name,
// and returns once one of them has answered.
func Open(ctx context.Context, urls []string, opts Options) (*Store, error) {
	if len(urls) < 1 || len(urls) > maxDatabases {
		return nil, &hapax.ValueError{Field: "databases", Value: len(urls), Allowed: fmt.Sprintf("1 to %d", maxDatabases), Err: hapax.ErrInvalidArgument}
	}
	if opts.Timeout <= 0 && len(urls) > 1 {
		opts.Timeout = failoverIn
	}
	s := newStore(opts)
	for _, url := range urls {
		db, err := mysqldb.Open(url, mysqldb.Options{Timeout: opts.Timeout, AcceptFailover: opts.AcceptFailover, Warn: opts.Warn})
		if err != nil {
			_ = s.Close()
			return nil, err
		}
		s.dbs = append(s.dbs, &database{DB: db})
	}
	if err := s.probe(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Check judges the databases' URLs without connecting to them.
func Check(urls []string) error {
	if len(urls) < 1 || len(urls) > maxDatabases {
		return &hapax.ValueError{Field: "databases", Value: len(urls), Allowed: fmt.Sprintf("1 to %d", maxDatabases), Err: hapax.ErrInvalidArgument}
	}
	for _, url := range urls {
		db, err := mysqldb.Open(url, mysqldb.Options{})
		if err != nil {
			return err
		}
		if err := db.Close(); err != nil {
			return err
		}
	}
	return nil
}

func newStore(opts Options) *Store {
	if opts.Warn == nil {
		opts.Warn = func(string, string) {}
	}
	s := &Store{warn: opts.Warn, marks: witness.NewMarks(opts.Witness, opts.Warn), known: map[string]*known{}}
	s.before = sorted(s.marks.Lines())
	return s
}

// A row is a row of tiny_id_info.
type row struct {
	id                                       int64
	bizType                                  string
	maxID, step, delta, remainder, versionNo int64
	stepless                                 bool // step is NULL, as its column may be
}

func (r *row) class() class { return class{r.delta, r.remainder} }

const columns = "id, biz_type, max_id, step, delta, remainder, version"

func (r *row) scan(scan func(...any) error) error {
	var step sql.NullInt64
	err := scan(&r.id, &r.bizType, &r.maxID, &step, &r.delta, &r.remainder, &r.versionNo)
	r.step, r.stepless = step.Int64, !step.Valid
	return err
}

// check returns why a row cannot be used, or nil. TinyID itself loops without end
// on a step of 0, divides by a delta of 0, and issues wrong residues where the
// remainder is not below delta.
func (r *row) check() error {
	bad := func(column string, value int64, allowed string) error {
		return fmt.Errorf("%w: row %q of tiny_id_info: %s is %d; allowed is %s: correct the row", hapax.ErrStoreCorrupt, r.bizType, column, value, allowed)
	}
	if err := hapax.ValidateName("tag", r.bizType); err != nil {
		return fmt.Errorf("%w: row %q of tiny_id_info: biz_type: %w", hapax.ErrStoreCorrupt, r.bizType, err)
	}
	switch {
	case r.stepless:
		return fmt.Errorf("%w: row %q of tiny_id_info: step is NULL; allowed is 1 to %d: correct the row", hapax.ErrStoreCorrupt, r.bizType, int64(hapax.MaxStep))
	case r.step < 1 || r.step > hapax.MaxStep:
		return bad("step", r.step, fmt.Sprintf("1 to %d", int64(hapax.MaxStep)))
	case r.delta < 1 || r.delta > hapax.MaxDelta:
		return bad("delta", r.delta, fmt.Sprintf("1 to %d", int64(hapax.MaxDelta)))
	case r.remainder < 0 || r.remainder >= r.delta:
		return bad("remainder", r.remainder, fmt.Sprintf("0 to delta - 1 (%d)", r.delta-1))
	case r.maxID < 0 || r.maxID >= hapax.MaxMark:
		return bad("max_id", r.maxID, fmt.Sprintf("0 to %d", int64(hapax.MaxMark-1)))
	}
	return nil
}

// asTag returns the row as a tag. The row's step is a width on the line, of which
// one number in delta is issued; a tag's step counts numbers.
func (r *row) asTag() hapax.Tag {
	step := max(1, r.step/r.delta)
	return hapax.Tag{
		Name: r.bizType, Kind: hapax.KindSegment, Start: 1, Step: step, MinStep: step,
		MaxStep: max(step, hapax.DefaultMaxStep), Mark: r.maxID + 1, Delta: r.delta, Remainder: r.remainder,
	}
}

// width returns by how much n numbers (0: the row's step) raise max_id: by one
// number at least.
func (r *row) width(n int64) int64 {
	if n == 0 {
		return max(r.step, r.delta)
	}
	return n * r.delta // at most 2^60
}

// Allocate implements hapax.SegmentStore. The allocation has no key: nothing can
// be handed back.
func (s *Store) Allocate(ctx context.Context, tag string, n int64, _ hapax.GrantKey) (hapax.Allocation, error) {
	if err := driver.CheckAllocate(tag, n); err != nil {
		return hapax.Allocation{}, err
	}
	var missing, failed error
	for _, i := range s.order(time.Now()) {
		a, err := s.allocate(ctx, i, tag, n)
		switch {
		case err == nil:
			s.healthy(i)
			return a, nil
		case errors.Is(err, hapax.ErrTagNotFound):
			missing = err // perhaps another database has it
		case ctx.Err() != nil, !isTrouble(err):
			return hapax.Allocation{}, err
		default:
			s.unhealthy(i, err)
			failed = errors.Join(failed, err)
		}
	}
	if failed != nil {
		return hapax.Allocation{}, failed
	}
	return hapax.Allocation{}, s.missing(tag, missing)
}

// isTrouble reports whether an error is one of the database and not of the row,
// so that another database may do.
func isTrouble(err error) bool {
	return errors.Is(err, hapax.ErrStoreUnavailable) || errors.Is(err, hapax.ErrStoreReplaced) || errors.Is(err, hapax.ErrStoreUnsafe) && !errors.Is(err, errOverlap)
}

// order returns the databases in the order in which they are to be tried: the
// current one first, those that are to be left alone last.
func (s *Store) order(now time.Time) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var order, later []int
	for k := range s.dbs {
		i := (s.current + k) % len(s.dbs)
		if now.Before(s.dbs[i].retryAt) {
			later = append(later, i)
		} else {
			order = append(order, i)
		}
	}
	return append(order, later...)
}

func (s *Store) healthy(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = i
	s.dbs[i].failures, s.dbs[i].retryAt = 0, time.Time{}
}

func (s *Store) unhealthy(i int, err error) {
	s.mu.Lock()
	db := s.dbs[i]
	wait := min(firstBackoff<<min(db.failures, 10), lastBackoff)
	db.failures++
	db.retryAt = time.Now().Add(wait/2 + rand.N(wait/2))
	first := db.failures == 1
	s.mu.Unlock()
	if first {
		s.warn("database_down", err.Error())
	}
}

// missing returns the error for a biz_type without a row: ErrTagDeleted where
// there was one.
func (s *Store) missing(tag string, err error) error {
	s.mu.Lock()
	k := s.known[tag]
	s.mu.Unlock()
	if k != nil && k.mark > 0 || s.before[tag] != nil {
		return fmt.Errorf("%w: row %q is gone from tiny_id_info", hapax.ErrTagDeleted, tag)
	}
	return err
}

// allocate takes a segment from one database.
func (s *Store) allocate(ctx context.Context, i int, tag string, n int64) (hapax.Allocation, error) {
	db := s.dbs[i]
	limited, cancel := db.Limit(ctx)
	defer cancel()
	if err := s.compare(limited, db); err != nil {
		return hapax.Allocation{}, db.Fail(ctx, "tiny_id_info", err)
	}
	s.survey(limited, i, tag)
	for attempt := range raceAttempts {
		a, won, err := s.try(limited, i, tag, n)
		if err != nil && attempt > 0 && limited.Err() != nil && ctx.Err() == nil {
			return hapax.Allocation{}, &raceError{tag, attempt}
		}
		if err != nil {
			return hapax.Allocation{}, db.Fail(ctx, "tiny_id_info", err)
		}
		if won {
			return a, nil
		}
		// Somebody else was first. A short random wait lets one of many win.
		select {
		case <-limited.Done():
			if ctx.Err() == nil {
				return hapax.Allocation{}, &raceError{tag, attempt + 1}
			}
			return hapax.Allocation{}, db.Fail(ctx, "tiny_id_info", limited.Err())
		case <-time.After(rand.N(time.Duration(min(attempt+1, 20)) * time.Millisecond)):
		}
	}
	return hapax.Allocation{}, &raceError{tag, raceAttempts}
}

// A raceError is the error of a call that lost each race until no tries or no time was left.
type raceError struct {
	tag  string
	lost int
}

func (e *raceError) Error() string {
	return fmt.Sprintf("%v: tiny_id_info: lost %d races for row %q", hapax.ErrStoreUnavailable, e.lost, e.tag)
}

func (e *raceError) Unwrap() error { return hapax.ErrStoreUnavailable }

// Conflict implements routes.Conflict.
func (e *raceError) Conflict() bool { return true }

// try takes a segment unless somebody else is faster.
func (s *Store) try(ctx context.Context, i int, tag string, n int64) (a hapax.Allocation, won bool, err error) {
	c, err := s.class(ctx, i, tag)
	if err != nil {
		return a, false, err
	}
	call, err := s.marks.Begin(c.line(tag))
	if err != nil {
		return a, false, err
	}
	db := s.dbs[i]
	r, err := s.read(ctx, db, tag)
	if err != nil {
		return a, false, err
	}
	if r.class() != c { // it was changed: the call is for another line
		s.learn(i, &r)
		return a, false, nil
	}
	old, err := s.begin(i, &r, call.Since)
	if err != nil {
		return a, false, err
	}
	width := r.width(n)
	if old > hapax.MaxMark-1-width {
		return a, false, fmt.Errorf("%w: row %q of tiny_id_info: max_id is %d", hapax.ErrLineExhausted, tag, r.maxID)
	}
	next := old + width
	res, err := db.SQL.ExecContext(ctx, "UPDATE tiny_id_info SET max_id = ?, update_time = NOW(), version = version + 1"+
		" WHERE id = ? AND max_id = ? AND version = ? AND biz_type = ?", next, r.id, r.maxID, r.versionNo, tag)
	if mysqldb.Signalled(err) {
		return a, false, fmt.Errorf("%w: row %q of tiny_id_info: %w", hapax.ErrLineExhausted, tag, err)
	}
	if err != nil {
		return a, false, err
	}
	changed, err := res.RowsAffected()
	if err != nil || changed != 1 {
		return a, false, err
	}
	r.maxID = next
	g := hapax.Grant{Lo: old + 1, Hi: next + 1}
	// The row is raised already: what is refused from here on is a gap.
	if err := call.Accept(g); err != nil {
		return a, false, err
	}
	s.end(&r)
	return hapax.Allocation{Grant: g, Tag: r.asTag(), From: g.Lo}, true, nil
}

// read returns the row whose biz_type is exactly tag: the column's collation
// ignores case and trailing spaces.
func (s *Store) read(ctx context.Context, db *database, tag string) (row, error) {
	var r row
	err := r.scan(db.SQL.QueryRowContext(ctx, "SELECT "+columns+" FROM tiny_id_info WHERE biz_type = ?", tag).Scan)
	if errors.Is(err, sql.ErrNoRows) || err == nil && r.bizType != tag {
		return r, fmt.Errorf("%w: tiny_id_info has no row %q", hapax.ErrTagNotFound, tag)
	}
	if err != nil {
		return r, err
	}
	return r, r.check()
}

// errOverlap marks rows whose numbers would meet. It is told by ErrStoreUnsafe.
var errOverlap = errors.New("the rows of several databases would issue the same numbers")

// knownLocked returns what is remembered of a biz_type, to be filled in.
func (s *Store) knownLocked(bizType string) *known {
	k := s.known[bizType]
	if k == nil {
		k = &known{classes: make([]class, len(s.dbs)), compared: make([]bool, len(s.dbs))}
		s.known[bizType] = k
	}
	return k
}

// survey looks at the rows of a biz_type in the other databases when it is first
// used, as far as they answer, so that rows whose numbers would meet are found
// before the first number is issued. Those that do not answer are judged when
// they are first used.
func (s *Store) survey(ctx context.Context, i int, tag string) {
	s.mu.Lock()
	k := s.known[tag]
	due := len(s.dbs) > 1 && (k == nil || !k.surveyed)
	s.mu.Unlock()
	if !due {
		return
	}
	now := time.Now()
	var found []row
	var at []int
	for j, db := range s.dbs {
		s.mu.Lock()
		skip := j == i || now.Before(db.retryAt)
		s.mu.Unlock()
		if skip {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, surveyIn)
		r, err := s.read(limited, db, tag)
		cancel()
		switch {
		case err == nil:
			found, at = append(found, r), append(at, j)
		case !errors.Is(err, hapax.ErrTagNotFound) && !errors.Is(err, hapax.ErrStoreCorrupt) && ctx.Err() == nil:
			s.unhealthy(j, db.Fail(ctx, "tiny_id_info", err))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(found) == 0 && s.known[tag] == nil {
		return // an unknown name must not fill the memory
	}
	k = s.knownLocked(tag)
	k.surveyed = true
	for n, r := range found {
		k.classes[at[n]] = r.class()
	}
}

// begin judges a row before it is used, and returns the max_id to go on from: the
// row's own, or a higher one where this Store was granted more on another
// database.
func (s *Store) begin(i int, r *row, taken int64) (int64, error) {
	if n := int64(len(s.dbs)); r.delta < n {
		return 0, fmt.Errorf("%w: %w: row %q of tiny_id_info has delta %d with %d databases; allowed is %d or more, and another remainder in each",
			hapax.ErrStoreUnsafe, errOverlap, r.bizType, r.delta, n, n)
	}
	if r.maxID+1 < taken {
		return 0, s.marks.Behind(r.class().line(r.bizType), behind(r, taken))
	}
	if len(s.dbs) == 1 {
		return r.maxID, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[r.bizType]
	if k == nil {
		return r.maxID, nil
	}
	for j, c := range k.classes {
		if j != i && c.delta > 0 && overlap(c, r.class()) {
			return 0, fmt.Errorf("%w: %w: row %q of tiny_id_info has delta %d and remainder %d in one database, delta %d and remainder %d in another: correct the rows, and start anew",
				hapax.ErrStoreUnsafe, errOverlap, r.bizType, r.delta, r.remainder, c.delta, c.remainder)
		}
	}
	return max(r.maxID, k.mark-1), nil
}

// end remembers a segment that was granted.
func (s *Store) end(r *row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.knownLocked(r.bizType)
	k.mark = max(k.mark, r.maxID+1)
}

// HandBack implements hapax.SegmentStore: the table has no token that would tell
// a late hand-back from a good one.
func (s *Store) HandBack(context.Context, hapax.Allocation, int64) error {
	return fmt.Errorf("%w: tiny_id_info takes no numbers back", hapax.ErrNotSupported)
}

// CreateTag implements hapax.SegmentStore: TinyID's biz_types are rows that
// whoever runs the tables inserts.
func (s *Store) CreateTag(_ context.Context, tag hapax.Tag, _ hapax.CreateMode) (hapax.Tag, error) {
	return hapax.Tag{}, fmt.Errorf("%w: biz_types of TinyID are made by hand, in each database with a remainder of its own: "+
		"INSERT INTO tiny_id_info (biz_type, begin_id, max_id, step, delta, remainder, create_time, update_time, version) VALUES (%s, %d, %d, %d, %d, %d, NOW(), NOW(), 1)",
		hapax.ErrNotSupported, mysqldb.Quote(tag.Name), max(tag.Start, 1)-1, max(tag.Start, 1)-1, max(tag.Step, 1)*max(tag.Delta, 1), max(tag.Delta, 1), tag.Remainder)
}

// Tag returns a biz_type from the first database that has it.
func (s *Store) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return hapax.Tag{}, err
	}
	var missing, failed error
	for _, i := range s.order(time.Now()) {
		db := s.dbs[i]
		limited, cancel := db.Limit(ctx)
		r, err := s.read(limited, db, name)
		cancel()
		if err == nil {
			return r.asTag(), nil
		}
		if errors.Is(err, hapax.ErrTagNotFound) {
			missing = err
			continue
		}
		failed = errors.Join(failed, db.Fail(ctx, "tiny_id_info", err))
	}
	if failed != nil {
		return hapax.Tag{}, failed
	}
	return hapax.Tag{}, missing
}

// Ping reports whether one of the databases answers.
func (s *Store) Ping(ctx context.Context) error { return s.probe(ctx) }

// Refused returns why rows are refused until Adopt, by biz_type.
func (s *Store) Refused() map[string]error {
	all := map[string]error{}
	for line, why := range s.marks.RefusedLines() {
		if _, bizType, ok := cutLine(line); ok {
			all[bizType] = fmt.Errorf("%w: %s", hapax.ErrFenced, why)
		}
	}
	return all
}

func (s *Store) probe(ctx context.Context) error {
	var failed error
	for _, db := range s.dbs {
		err := db.Probe(ctx, "tiny_id_info", "SELECT "+columns+" FROM tiny_id_info LIMIT 1")
		if err == nil {
			return nil
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// Close closes the databases, unless they are the caller's.
func (s *Store) Close() error {
	var err error
	for _, db := range s.dbs {
		err = errors.Join(err, db.Close())
	}
	return err
}
