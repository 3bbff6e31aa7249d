// Package mongostore keeps tags and workers in MongoDB (5.0 or later).
//
// Every write waits for a majority of the replica set to have it in the journal,
// whatever the URL says about write concern, so a failover keeps what was
// acknowledged and the new primary is simply used. Every read is a majority read
// from the primary. Where sessions exist the driver sends a write again under
// the same transaction number, so that it happens once.
//
// Each document carries the ID of the store it belongs to, and each write asks
// for it: on a server that lost its data, or holds another store, nothing is
// granted and nothing made (ErrStoreReplaced). A single document that was
// deleted by hand is beyond the store's knowledge; the witness that nodes keep
// outside the store notices it.
//
// # Documents
//
// In the URL's database (default hapax), with the default prefix:
//
//	hapax_store    {_id: "store", id, format, created}
//	hapax_tags     {_id: NAME, store, rev, kind, deleted, mark, start, step, min_step, max_step, pool, updated}
//	hapax_pools    {_id: POOL, store, layout}
//	hapax_workers  {_id: "POOL/ID", store, pool, worker, epoch, mark, holder, expires}
//
// All numbers are 64-bit integers; who edits one by hand must keep it one
// (NumberLong), or the document is refused with ErrStoreCorrupt. rev counts the
// changes of a tag's definition; grants leave it as it is.
package mongostore

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/hapax-id/hapax"
)

var (
	_ hapax.Store       = (*Store)(nil)
	_ hapax.WorkerTable = (*Store)(nil)
	_ hapax.StoreClock  = (*Store)(nil)
)

// Defaults of Options.
const (
	DefaultDatabase = "hapax"
	DefaultPrefix   = "hapax_"
	DefaultTimeout  = 5 * time.Second
)

const (
	format         = 1           // of the documents; another one is refused
	maxPrefixBytes = 64          // of Options.Prefix
	closeWithin    = time.Second // for calls in flight to end before Close breaks them off
	storeDocument  = "store"     // _id
)

// Options are the settings of a store; the zero value is useful.
type Options struct {
	Prefix  string        // of all collections; up to 64 letters, digits, _ and -; default DefaultPrefix; in the URL: prefix
	Timeout time.Duration // of a call whose context has no deadline; default DefaultTimeout; in the URL: timeoutMS
	TLS     *tls.Config   // instead of what the URL says about TLS; default nil

	// Warn is told by Open what an operator should know. Default: nobody is told.
	Warn func(code, message string)
}

// Codes of Options.Warn.
const (
	WarnSingleMember = "single_member" // no replica set: a lost disk is a lost store
	WarnNotDurable   = "not_durable"   // the storage engine forgets with the process
)

// A Store is a store in MongoDB. Its methods are safe for concurrent use. It
// connects as needed, with at most 100 connections a server (maxPoolSize in the
// URL), and reconnects by itself.
type Store struct {
	client  *mongo.Client
	opts    Options
	id      string
	meta    *mongo.Collection
	tags    *mongo.Collection
	pools   *mongo.Collection
	workers *mongo.Collection
	steps   steps
}

// Open connects to the servers that the URL names and, at first use, makes the
// database a store. The URL is MongoDB's own, mongodb:// or mongodb+srv://; a
// parameter prefix is the store's.
//
// ErrStoreUnavailable, ErrStoreCorrupt, and *hapax.ValueError for a URL or
// option that cannot be used.
func Open(ctx context.Context, rawURL string, opts Options) (*Store, error) {
	client, database, err := clientOptions(rawURL, &opts)
	if err != nil {
		return nil, err
	}
	c, err := mongo.Connect(client)
	if err != nil {
		return nil, fmt.Errorf("%w: mongodb: connect: %w", hapax.ErrStoreUnavailable, err)
	}
	db := c.Database(database)
	s := &Store{
		client: c, opts: opts,
		meta: db.Collection(opts.Prefix + "store"), tags: db.Collection(opts.Prefix + "tags"),
		pools: db.Collection(opts.Prefix + "pools"), workers: db.Collection(opts.Prefix + "workers"),
	}
	if err := s.open(ctx); err != nil {
		_ = s.Close() // the first error tells more
		return nil, err
	}
	return s, nil
}

// clientOptions reads the URL over the options, and returns the driver's
// options and the database.
func clientOptions(raw string, opts *Options) (*options.ClientOptions, string, error) {
	bad := func(detail string) (*options.ClientOptions, string, error) {
		return nil, "", &hapax.ValueError{
			Field: "store", Value: "a MongoDB URL " + detail,
			Allowed: "mongodb:// or mongodb+srv://, with special characters in names and passwords percent-encoded", Err: hapax.ErrInvalidArgument,
		}
	}
	address, query, _ := strings.Cut(raw, "?")
	var params []string
	for p := range strings.SplitSeq(query, "&") {
		if prefix, ok := strings.CutPrefix(p, "prefix="); ok {
			opts.Prefix = prefix
		} else if p != "" {
			params = append(params, p)
		}
	}
	if opts.Prefix == "" {
		opts.Prefix = DefaultPrefix
	}
	if len(opts.Prefix) > maxPrefixBytes || strings.ContainsFunc(opts.Prefix, notInName) {
		return nil, "", &hapax.ValueError{Field: "prefix", Value: opts.Prefix, Allowed: "up to 64 letters, digits, _ and -", Err: hapax.ErrInvalidArgument}
	}
	_, rest, _ := strings.Cut(address, "://")
	_, path, hasPath := strings.Cut(rest, "/")
	database, err := url.PathUnescape(path)
	if err != nil || strings.ContainsAny(database, `/\. "$`) {
		return bad("with a database that cannot be one")
	}
	if database == "" {
		database = DefaultDatabase
	}
	if !hasPath {
		address += "/"
	}
	if len(params) > 0 {
		address += "?" + strings.Join(params, "&")
	}
	client := options.Client().ApplyURI(address)
	if err := client.Validate(); err != nil {
		if dns, ok := errors.AsType[*net.DNSError](err); ok {
			return nil, "", fmt.Errorf("%w: mongodb: connect: %w", hapax.ErrStoreUnavailable, dns)
		}
		if strings.Contains(raw, "@") {
			return bad("that the driver does not accept") // its reason may quote the password
		}
		return bad("that the driver does not accept: " + err.Error())
	}
	if client.Timeout != nil && *client.Timeout > 0 && opts.Timeout <= 0 {
		opts.Timeout = *client.Timeout
	}
	if opts.Timeout <= 0 {
		opts.Timeout = DefaultTimeout
	}
	if client.AppName == nil {
		client.SetAppName("hapax")
	}
	if opts.TLS != nil {
		client.SetTLSConfig(opts.TLS.Clone())
	}
	if opts.Warn == nil {
		opts.Warn = func(string, string) {}
	}
	journal := true
	client.SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal})
	client.SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary())
	return client, database, nil
}

func notInName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
}

// meta is the store's own document.
type meta struct {
	ID     string `bson:"id"`
	Format int64  `bson:"format"`
}

func (s *Store) open(ctx context.Context) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	m, err := s.readMeta(ctx)
	if err == nil && m.ID == "" {
		_, err = s.meta.InsertOne(ctx, bson.D{
			{Key: "_id", Value: storeDocument},
			{Key: "id", Value: rand.Text()},
			{Key: "format", Value: int64(format)},
			{Key: "created", Value: time.Now()},
		})
		if err == nil || mongo.IsDuplicateKeyError(err) {
			m, err = s.readMeta(ctx)
		}
	}
	if err != nil {
		return failed(ctx, "open", err)
	}
	if m.ID == "" || m.Format != format {
		return fmt.Errorf("%w: mongodb: the documents have format %d, this version understands %d", hapax.ErrStoreCorrupt, m.Format, format)
	}
	_, err = s.workers.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "pool", Value: 1}, {Key: "worker", Value: 1}}})
	if err != nil {
		return failed(ctx, "open", err)
	}
	s.id = m.ID
	return s.probe(ctx)
}

// probe warns about what cannot be durable.
func (s *Store) probe(ctx context.Context) error {
	hello, err := s.hello(ctx)
	if err != nil {
		return failed(ctx, "open", err)
	}
	if hello.SetName == "" && hello.Msg != "isdbgrid" {
		s.opts.Warn(WarnSingleMember, "the server is not a replica set: losing its disk loses the store, and no other server takes over")
	}
	var status struct {
		StorageEngine struct {
			Persistent *bool `bson:"persistent"`
		} `bson:"storageEngine"`
	}
	// Few accounts may ask for this; nothing depends on the answer.
	err = s.meta.Database().RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&status)
	if p := status.StorageEngine.Persistent; err == nil && p != nil && !*p {
		s.opts.Warn(WarnNotDurable, "the storage engine keeps nothing on disk: a restart loses the store")
	}
	return nil
}

// hello is what a server tells about itself.
type hello struct {
	SetName   string    `bson:"setName"`
	Msg       string    `bson:"msg"`
	LocalTime time.Time `bson:"localTime"`
}

func (s *Store) hello(ctx context.Context) (hello, error) {
	var h hello
	err := s.meta.Database().RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&h)
	return h, err
}

// readMeta reads the store's document; there may be none.
func (s *Store) readMeta(ctx context.Context) (meta, error) {
	var m meta
	err := s.meta.FindOne(ctx, bson.D{{Key: "_id", Value: storeDocument}}).Decode(&m)
	if errors.Is(err, mongo.ErrNoDocuments) {
		err = nil
	}
	return m, err
}

// same checks a store ID that the server gave.
func (s *Store) same(id string) error {
	switch id {
	case s.id:
		return nil
	case "":
		return fmt.Errorf("%w: mongodb: the server came back without its data, or the data was deleted", hapax.ErrStoreReplaced)
	}
	return fmt.Errorf("%w: mongodb: the server now holds store %.40q, not %q", hapax.ErrStoreReplaced, id, s.id)
}

// check asks the server whether it holds the store that was opened.
func (s *Store) check(ctx context.Context) error {
	m, err := s.readMeta(ctx)
	if err != nil {
		return err
	}
	return s.same(m.ID)
}

// StoreID implements hapax.SegmentStore. It fails with ErrStoreReplaced once
// the server holds another store than the one that was opened.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	if err := s.check(ctx); err != nil {
		return "", failed(ctx, "read the store ID", err)
	}
	return s.id, nil
}

// Ping implements hapax.Store. It sends a write that changes nothing, which
// waits for a majority as every other does.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	res, err := s.meta.UpdateOne(ctx, bson.D{{Key: "_id", Value: storeDocument}, {Key: "id", Value: s.id}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "id", Value: s.id}}}})
	if err == nil && res.MatchedCount == 0 {
		err = s.check(ctx)
	}
	return failed(ctx, "ping", err)
}

// StoreTime implements hapax.StoreClock.
func (s *Store) StoreTime(ctx context.Context) (time.Time, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	h, err := s.hello(ctx)
	if err != nil {
		return time.Time{}, failed(ctx, "read the clock", err)
	}
	return h.LocalTime, nil
}

// Close implements hapax.Store. Later calls fail with ErrStoreUnavailable.
func (s *Store) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	err := s.client.Disconnect(ctx)
	if errors.Is(err, mongo.ErrClientDisconnected) || errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return err
}

// deadline gives the call one if it has none.
func (s *Store) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.opts.Timeout)
}

// failed translates an error of a call; hapax's own and nil pass.
func failed(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return err
	}
	cause := hapax.ErrStoreUnavailable
	if _, ok := errors.AsType[*bson.DecodeError](err); ok {
		cause = hapax.ErrStoreCorrupt
	}
	// The driver's deadline is the context's, and may be noticed first.
	ended := ctx.Err()
	if at, ok := ctx.Deadline(); ok && ended == nil && !time.Now().Before(at) {
		ended = context.DeadlineExceeded
	}
	if ended != nil && !errors.Is(err, ended) {
		return fmt.Errorf("%w: mongodb: %s: %w (%w)", cause, doing, err, ended)
	}
	return fmt.Errorf("%w: mongodb: %s: %w", cause, doing, err)
}

// An exact number is a 64-bit integer in the document too. A double, as it
// comes from a hand's edit, would lose digits.
type exact int64

// UnmarshalBSONValue implements bson.ValueUnmarshaler.
func (e *exact) UnmarshalBSONValue(kind byte, data []byte) error {
	v := bson.RawValue{Type: bson.Type(kind), Value: data}
	n, ok := v.Int64OK()
	if !ok || v.Type != bson.TypeInt64 {
		return fmt.Errorf("%w: mongodb: a number is stored as %s; store it as a 64-bit integer (NumberLong)", hapax.ErrStoreCorrupt, v.Type)
	}
	*e = exact(n)
	return nil
}
