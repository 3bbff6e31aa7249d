package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/boltstore"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/etcdstore"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/store/sqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
	"github.com/hapax-id/hapax/store/sqlstore/postgresstore"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/store/zkstore"
)

// A StoreForm describes one kind of store URL.
type StoreForm struct {
	URL string
	Doc string
}

// StoreForms returns the URLs that the setting store takes.
func StoreForms() []StoreForm {
	return []StoreForm{
		{"bolt:PATH", "the embedded store in one local file, for one process; without PATH it is hapax.db in the data directory"},
		{"memory:", "a store that forgets everything when the process ends, for tests"},
		{"mysql://USER:PASSWORD@HOST:3306/DATABASE", "MySQL and MariaDB; tls, tls_ca, tls_cert, tls_key, socket and prefix may follow as parameters"},
		{"postgres://USER:PASSWORD@HOST:5432/DATABASE", "PostgreSQL; sslmode and what else pgx takes, settings of the session, and prefix may follow as parameters"},
		{"redis://USER:PASSWORD@HOST:6379/0", "Redis; also rediss:// for TLS, redis+sentinel://, redis+cluster:// and unix://"},
		{"mongodb://USER:PASSWORD@HOST:27017/DATABASE", "MongoDB; also mongodb+srv://, with the parameters of its drivers, and prefix"},
		{"etcd://HOST:2379,HOST:2379/PREFIX", "etcd; etcds:// for TLS"},
		{"zk://HOST:2181,HOST:2181/PATH", "ZooKeeper; zks:// for TLS"},
	}
}

func storeForms() string {
	var forms []string
	for _, f := range StoreForms() {
		forms = append(forms, f.URL)
	}
	return "one of " + strings.Join(forms, ", ")
}

// boltFile is the embedded store in the data directory.
const boltFile = "hapax.db"

// isVolatile reports whether a store forgets everything when the process ends.
func isVolatile(storeURL string) bool { return strings.HasPrefix(storeURL, "memory:") }

// boltPath returns the file of an embedded store, or "" for other URLs.
func boltPath(storeURL, data string) string {
	path, ok := strings.CutPrefix(storeURL, "bolt:")
	switch {
	case !ok:
		return ""
	case path == "":
		return filepath.Join(data, boltFile)
	}
	return path
}

// An opener opens the store that a URL names.
type opener struct {
	url       string
	data      string // the directory where "bolt:" without a path lies
	timeout   time.Duration
	heartbeat time.Duration
	witness   string // file of the witness; empty for the one in the data directory
	manual    bool   // a person decides about fences
	address   string // where the node can be found; empty: nowhere
	look      bool   // the store is only looked at
	pools     map[string]service.PoolConfig

	ledger      string // the setting
	ledgerBytes int64
	ledgerAge   time.Duration

	log    *slog.Logger
	warned *warnings

	keep     bool        // no store is made; for commands that need one
	existing func() bool // whether no store may be made now, either; nil: one may
}

func newOpener(c Config, log *slog.Logger) opener {
	store, err := withPassword(c.Store, c.storePassword)
	if err != nil {
		store = c.Store // Load has refused it; open does, too
	}
	return opener{
		url: store, data: c.Data, timeout: c.StoreTimeout, heartbeat: c.Heartbeat, witness: c.Witness, pools: c.Pools,
		manual: c.Heal == healManual, address: c.address,
		ledger: c.Ledger, ledgerBytes: int64(c.LedgerSize) << 20, ledgerAge: c.LedgerAge,
		log: log, warned: &warnings{counts: map[string]int{}},
	}
}

// warnings counts what drivers warn of, by code.
type warnings struct {
	mu     sync.Mutex // guards what follows
	counts map[string]int
	told   map[string]bool // their words, which are few
}

func (w *warnings) add(code string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[code]++
}

// isNew reports whether nothing was said in these words before.
func (w *warnings) isNew(message string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	isNew := !w.told[message]
	if w.told == nil {
		w.told = map[string]bool{}
	}
	w.told[message] = true
	return isNew
}

func (w *warnings) snapshot() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.counts)
}

func (o opener) warn(code, message string) {
	if o.warned.add(code); !o.warned.isNew(message) { // a node opens its store for calls, for heartbeats, and whenever it was lost
		return
	}
	o.log.Warn("the store is not as safe as it could be", "code", code, "detail", message)
}

// guardOptions are the options of the guard around the store.
func (o opener) guardOptions(changed func(witness.Status)) witness.Options {
	return witness.Options{
		Name: o.nodeName(), Address: o.address, Timeout: o.timeout, Heartbeat: o.heartbeat, Manual: o.manual, Changed: changed, Log: o.log,
	}
}

// guard opens the store behind a witness. A shared one need not be reached now.
func (o opener) guard(ctx context.Context, w *witness.Witness, opts witness.Options) (*witness.Guarded, error) {
	if o.isShared() {
		// A node that knows a store makes none where it finds none: a dump that is being put back would
		// meet tables that this node has made.
		o.existing = w.KnowsStore
		return witness.GuardOpened(o.open, w, opts)
	}
	store, err := o.open(ctx) // a file that cannot be opened now will not be later
	if err != nil {
		return nil, err
	}
	return witness.Guard(store, w, opts)
}

// open opens the store, and says what is the matter where it cannot.
func (o opener) open(ctx context.Context) (driver.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	store, err := o.dial(ctx)
	if would, ok := errors.AsType[*driver.WouldChangeError](err); ok && o.keep && would.What == driver.NewStore {
		err = noStore(o.url, o.data)
	}
	return store, o.explain(err)
}

// ErrNoStore is the cause where a command needs a store, and there is none.
var ErrNoStore = fmt.Errorf("%w: there is no store", hapax.ErrInvalidArgument)

// noStore is the error of a command that needs a store where there is none.
func noStore(store, data string) error {
	name := redact(store)
	if path := boltPath(store, data); path != "" {
		name = "bolt:" + path
	}
	return &hapax.ValueError{
		Field: "store", Value: name, Err: ErrNoStore,
		Allowed: "a place that has a store, and this one is empty: check it; while a backup is being put back, wait; and hapax serve or hapax tags create makes the first store",
	}
}

// isNoFile reports whether a store would be made at path: in a directory that is there.
func isNoFile(path string) bool {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat(filepath.Dir(path))
		return err == nil
	}
	return err == nil && info.Size() == 0
}

// makesNone reports whether no store may be made where there is none.
func (o opener) makesNone() bool { return o.keep || o.existing != nil && o.existing() }

// check returns what is wrong with the URL, all that shows without connecting.
func (o opener) check() error {
	scheme, _, _ := strings.Cut(o.url, ":")
	switch scheme {
	case "memory", "bolt":
		return nil
	case "mysql":
		return mysqlstore.CheckURL(o.url)
	case "postgres", "postgresql":
		return postgresstore.CheckURL(o.url)
	case "mongodb", "mongodb+srv":
		return mongostore.CheckURL(o.url)
	case "etcd", "etcds":
		return etcdstore.CheckURL(o.url)
	case "zk", "zks":
		return zkstore.CheckURL(o.url)
	}
	return redisstore.CheckURL(o.url) // Load knows no other scheme
}

func (o opener) dial(ctx context.Context) (driver.Store, error) {
	scheme, _, _ := strings.Cut(o.url, ":")
	switch scheme {
	case "memory":
		return memstore.New(), nil
	case "bolt":
		path := boltPath(o.url, o.data)
		if o.keep && isNoFile(path) {
			return nil, &driver.WouldChangeError{What: driver.NewStore}
		}
		return boltstore.Open(ctx, path, boltstore.Options{Look: o.look})
	case "mysql":
		return mysqlstore.Open(ctx, o.url, sqlstore.Options{Timeout: o.timeout, Warn: o.warn, Look: o.look, Existing: o.makesNone})
	case "postgres", "postgresql":
		return postgresstore.Open(ctx, o.url, sqlstore.Options{Timeout: o.timeout, Warn: o.warn, Look: o.look, Existing: o.makesNone})
	case "redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "unix":
		redisstore.LogTo(o.log)
		return redisstore.Open(ctx, o.url, redisstore.Options{Timeout: o.timeout, Warn: o.warn, Look: o.look, Existing: o.makesNone})
	case "mongodb", "mongodb+srv":
		return mongostore.Open(ctx, o.url, mongostore.Options{Timeout: o.timeout, Warn: o.warn, Look: o.look, Existing: o.makesNone})
	case "etcd", "etcds":
		return etcdstore.Open(ctx, o.url, etcdstore.Options{Timeout: o.timeout, Warn: o.warn, Look: o.look, Existing: o.makesNone})
	case "zk", "zks":
		return zkstore.Open(ctx, o.url, zkstore.Options{Timeout: o.timeout, Warn: o.warn, Look: o.look, Existing: o.makesNone})
	}
	_, err := parseStoreURL(o.url)
	return nil, err
}

// nodeName returns what operators know this node by.
func (o opener) nodeName() string {
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	dir, err := filepath.Abs(o.data)
	if err != nil {
		dir = o.data
	}
	return host + ":" + dir
}

// Shared reports whether the store is one that other processes may use, too.
func (c Config) Shared() bool { return !isLocal(c.Store) }

// isShared reports whether other processes may use the store, too: one that cannot be
// reached now may come back.
func (o opener) isShared() bool { return boltPath(o.url, o.data) == "" && !isVolatile(o.url) }
