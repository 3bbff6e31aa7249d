// Package mongostore keeps a store in MongoDB (5.0 or later).
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
// outside the store notices it. A server that was started anew may stand on a copy: guarded
// calls tell the primary's process and election, but in a sharded cluster
// (driver.Contact.Primary).
//
// # Documents
//
// In the URL's database (default hapax), with the default prefix:
//
//	hapax_store    {_id: "store", id, format, created}
//	hapax_tags     {_id: NAME, store, value: "{\"kind\":\"segment\",…,\"mark\":4001}", by}
//	hapax_rows     {_id: TABLE + "\x01" + NAME, store, value, by}
//
// A value is a text, mostly JSON, whose integers are exact; by identifies the last write, and
// tells when it was made. A change is one update on condition of the whole old value, in
// which a decision rests. No transactions are used: not every server that speaks MongoDB's
// protocol keeps them. So a guarded call looks at the conditions before its change and after it
// (see space.Step).
package mongostore

import (
	"cmp"
	"context"
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
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var (
	_ driver.Store = (*Store)(nil)
	_ driver.Clock = (*Store)(nil)
	_ driver.KV    = (*space)(nil)
)

// Defaults of Options.
const (
	DefaultDatabase = "hapax"
	DefaultPrefix   = "hapax_"
	DefaultTimeout  = 5 * time.Second
)

const (
	format         = 4           // of the documents
	maxPrefixBytes = 64          // of Options.Prefix
	closeWithin    = time.Second // for calls in flight to end before Close breaks them off
	storeDocument  = "store"     // _id
)

// Options are the settings of a store; the zero value is useful.
type Options struct {
	Prefix  string        // of all collections; up to 64 letters, digits, _ and -; default DefaultPrefix; in the URL: prefix
	Timeout time.Duration // of each call, also when its context allows more; default DefaultTimeout; in the URL: timeoutMS
	TLS     *tls.Config   // instead of the URL's settings of TLS; default nil

	// Look has Open change nothing: where it would have to, it fails with a
	// *driver.WouldChangeError. Nothing may be written to the store then.
	Look bool

	// Existing, if set, is asked before a store would be made: where it returns true, New
	// makes none, and fails with a *driver.WouldChangeError. See witness.Witness.KnowsStore.
	Existing func() bool

	// Warn is told by Open what an operator should know. Default: nobody is told.
	Warn func(code, message string)
}

// Codes of Options.Warn.
const (
	WarnSingleMember = "single_member" // no replica set: a lost disk is a lost store
	WarnNotDurable   = "not_durable"   // the storage engine forgets with the process
)

// withDefaults fills in the settings that are not set, and checks the rest.
func (o Options) withDefaults() (Options, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if len(o.Prefix) > maxPrefixBytes || strings.ContainsFunc(o.Prefix, notInName) {
		return o, &hapax.ValueError{Field: "prefix", Value: o.Prefix, Allowed: "up to 64 letters, digits, _ and -", Err: hapax.ErrInvalidArgument}
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	return o, nil
}

// base gives a Store its methods without a field that outsiders see.
type base = driver.Base

// A Store is a store in MongoDB. Its methods are safe for concurrent use. It
// connects as needed, with at most 100 connections a server (maxPoolSize in the
// URL), and reconnects by itself.
type Store struct {
	*base // tags and rows
	space *space
	own   *mongo.Client // disconnected by Close; nil if it is the caller's
	opts  Options
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
	p := &primaries{at: -1}
	c, err := mongo.Connect(client.SetPoolMonitor(p.monitor()))
	if err != nil {
		return nil, fmt.Errorf("%w: mongodb: connect: %w", hapax.ErrStoreUnavailable, err)
	}
	return open(ctx, c.Database(database), c, p, "MongoDB at "+strings.Join(client.Hosts, ","), opts)
}

// CheckURL returns what is wrong with a URL for Open, without connecting: ErrInvalidArgument.
// Of mongodb+srv:// the DNS is not asked, which has more of it to say.
func CheckURL(url string) error {
	_, _, err := clientOptions(withoutDNS(url), &Options{})
	return err
}

// New makes a store of a database of an existing client, as Open does. What the
// client says about concerns and preferences does not count. Close leaves the
// client connected. Options.TLS is not used.
func New(ctx context.Context, db *mongo.Database, opts Options) (*Store, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return open(ctx, db, nil, &primaries{at: -1}, "MongoDB", opts)
}

func open(ctx context.Context, db *mongo.Database, own *mongo.Client, p *primaries, service string, opts Options) (*Store, error) {
	journal := true
	concerns := options.Collection().
		SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal}).
		SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary())
	collection := func(name string) *mongo.Collection { return db.Collection(opts.Prefix+name, concerns) }
	k := &space{
		calls: driver.Calls{Service: service, Timeout: opts.Timeout},
		meta:  collection("store"), tags: collection("tags"), rows: collection("rows"), primaries: p,
	}
	s := &Store{base: driver.NewBase(&k.calls, k, driver.BaseOptions{ByValue: true, Split: true}), space: k, own: own, opts: opts}
	if err := s.call(ctx, s.begin); err != nil {
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
			Field: "store", Value: "(a MongoDB URL " + detail + ")",
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
	if err := checkParams(address); err != nil {
		return nil, "", err
	}
	client := options.Client().ApplyURI(address)
	if err := client.Validate(); err != nil {
		// A name that is not resolved now may be later: the URL is not at fault.
		if dns, ok := errors.AsType[*net.DNSError](err); ok {
			return nil, "", fmt.Errorf("%w: mongodb: connect: %w", hapax.ErrStoreUnavailable, dns)
		}
		return bad("that the driver does not accept" + reason(address))
	}
	if client.Timeout != nil && *client.Timeout > 0 && opts.Timeout <= 0 {
		opts.Timeout = *client.Timeout
	}
	if client.AppName == nil {
		client.SetAppName("hapax")
	}
	if opts.TLS != nil {
		client.SetTLSConfig(opts.TLS.Clone())
	}
	*opts, err = opts.withDefaults()
	return client, database, err
}

func notInName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
}

// meta is the store's own document.
type meta struct {
	ID     string `bson:"id"`
	Format int64  `bson:"format"`
	Closed string `bson:"closed"` // why nobody may use it yet: see driver.Founding
}

// begin makes the store unless it exists, and warns about what cannot be durable.
func (s *Store) begin(ctx context.Context) error {
	m, err := s.space.readMeta(ctx)
	if err == nil && m == (meta{}) {
		if s.opts.Look || s.opts.Existing != nil && s.opts.Existing() {
			return &driver.WouldChangeError{What: driver.NewStore}
		}
		made := bson.D{
			{Key: "_id", Value: storeDocument},
			{Key: "id", Value: driver.NewStoreID(ctx)},
			{Key: "format", Value: int64(format)},
			{Key: "created", Value: time.Now()},
		}
		if closed := driver.NewClosed(ctx); closed != "" {
			made = append(made, bson.E{Key: "closed", Value: closed})
		}
		_, err = s.space.meta.InsertOne(ctx, made)
		// Read back in either case: of several handles that make it at once all take the first one's.
		if err == nil || mongo.IsDuplicateKeyError(err) {
			m, err = s.space.readMeta(ctx)
		}
	}
	if err != nil {
		return err
	}
	place := "MongoDB collection " + s.space.meta.Name()
	if err := driver.CheckFormat(place, m.Format, format); err != nil {
		return err
	}
	if m.ID == "" {
		return fmt.Errorf("%w: %s: id is missing", hapax.ErrStoreCorrupt, place)
	}
	if err := driver.CheckClosed(ctx, m.Closed); err != nil {
		return err
	}
	s.space.id = m.ID
	return s.probe(ctx)
}

// probe warns about what cannot be durable.
func (s *Store) probe(ctx context.Context) error {
	var hello hello
	_, err := s.space.primaries.after(func() (_ string, err error) { // the first step need not ask
		hello, err = s.space.hello(ctx)
		return hello.primary(), err
	})
	if err != nil {
		return err
	}
	if s.opts.Warn == nil {
		return nil
	}
	if hello.SetName == "" && hello.Msg != isRouter {
		s.opts.Warn(WarnSingleMember, "the server is not a replica set: losing its disk loses the store, and no other server takes over")
	}
	var status struct {
		StorageEngine struct {
			Persistent *bool `bson:"persistent"`
		} `bson:"storageEngine"`
	}
	// Few accounts may ask for this; nothing depends on the answer.
	err = s.space.meta.Database().RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}, options.RunCmd().SetReadPreference(readpref.Primary())).Decode(&status)
	if p := status.StorageEngine.Persistent; err == nil && p != nil && !*p {
		s.opts.Warn(WarnNotDurable, "the storage engine keeps nothing on disk: a restart loses the store")
	}
	return nil
}

// hello holds the fields of a server's hello that we check.
type hello struct {
	SetName   string    `bson:"setName"`
	Msg       string    `bson:"msg"`
	LocalTime time.Time `bson:"localTime"`

	TopologyVersion topologyVersion `bson:"topologyVersion"`
	ElectionID      bson.ObjectID   `bson:"electionId"` // zero: the server is in no replica set
}

func (s *space) hello(ctx context.Context) (hello, error) {
	var h hello
	err := s.meta.Database().RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}, options.RunCmd().SetReadPreference(readpref.Primary())).Decode(&h)
	return h, err
}

// readMeta reads the store's document; there may be none.
func (s *space) readMeta(ctx context.Context) (meta, error) {
	var m meta
	err := s.meta.FindOne(ctx, bson.D{{Key: "_id", Value: storeDocument}}).Decode(&m)
	if errors.Is(err, mongo.ErrNoDocuments) {
		err = nil
	}
	return m, err
}

// StoreID implements driver.Store. It fails with ErrStoreReplaced once the server
// holds another store than the one that was opened.
func (s *Store) StoreID(ctx context.Context) (string, error) {
	if err := s.call(ctx, s.space.check); err != nil {
		return "", err
	}
	return s.space.id, nil
}

// OpenToAll implements driver.Founded.
func (s *Store) OpenToAll(ctx context.Context) error {
	return s.updateMeta(ctx, bson.D{{Key: "$unset", Value: bson.D{{Key: "closed", Value: ""}}}})
}

// updateMeta changes the document of the store that was opened.
func (s *Store) updateMeta(ctx context.Context, change bson.D) error {
	k := s.space
	return s.call(ctx, func(ctx context.Context) error {
		res, err := k.meta.UpdateOne(ctx, bson.D{{Key: "_id", Value: storeDocument}, {Key: "id", Value: k.id}}, change)
		if err == nil && res.MatchedCount == 0 {
			err = k.check(ctx)
		}
		return err
	})
}

// OpenedID implements driver.Opened.
func (s *Store) OpenedID() string { return s.space.id }

// Ping implements driver.Store. It sends a write that changes nothing, which
// waits for a majority as every other does.
func (s *Store) Ping(ctx context.Context) error {
	return s.updateMeta(ctx, bson.D{{Key: "$set", Value: bson.D{{Key: "id", Value: s.space.id}}}})
}

// StoreTime implements driver.Clock.
func (s *Store) StoreTime(ctx context.Context) (now time.Time, err error) {
	err = s.call(ctx, func(ctx context.Context) error {
		h, err := s.space.hello(ctx)
		now = h.LocalTime
		return err
	})
	return now, err
}

// Close implements driver.Store. Later calls fail with ErrClosed.
func (s *Store) Close() error {
	if !s.space.calls.End() || s.own == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	err := s.own.Disconnect(ctx)
	// What still ran was broken off, as it should be.
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return err
}

// call runs f within the time limit, and translates its error.
func (s *Store) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel, err := s.space.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return s.space.failed(ctx, f(ctx))
}

// failed translates an error of a call; hapax's own and nil pass.
func (s *space) failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[*bson.DecodeError](err); ok {
		return fmt.Errorf("%w: %s: %w", hapax.ErrStoreCorrupt, s.calls.Service, err)
	}
	if errors.Is(err, mongo.ErrClientDisconnected) { // closed meanwhile
		return fmt.Errorf("%w: the store in %s", hapax.ErrClosed, s.calls.Service)
	}
	if at, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(at) && !errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w (%w)", err, context.DeadlineExceeded) // the driver has the same deadline, and may notice first
	}
	return s.calls.Unavailable(ctx, unselected(err))
}

// unselected returns what each server told last, where the driver could choose none: it
// says so in words alone, and they hide what is the matter in a list.
func unselected(err error) error {
	e, ok := errors.AsType[topology.ServerSelectionError](err)
	if !ok {
		return err
	}
	all := []error{cmp.Or(e.Wrapped, context.DeadlineExceeded)}
	for _, server := range e.Desc.Servers {
		if server.LastError != nil {
			all = append(all, fmt.Errorf("%s: %w", server.Addr, server.LastError))
		}
	}
	return fmt.Errorf("no server can be chosen: %w", errors.Join(all...))
}
