package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/store/witness"
)

const (
	redisMongoStrategy = "redis-mongo" // of tags whose numbers Redis counts
	redisMongoName     = "redismongo"  // in the name of the witness of compat.redismongo.store
)

// A RedisMongoConfig is what the strategy redis-mongo works with.
type RedisMongoConfig struct {
	Redis       string        `yaml:"redis"`
	Store       string        `yaml:"store"`
	Prefix      string        `yaml:"prefix"`
	Threshold   int           `yaml:"threshold"`
	OnStoreLoss string        `yaml:"on_store_loss"`
	Reserve     int64         `yaml:"reserve"`
	Timeout     time.Duration `yaml:"timeout"`

	WorkerPool     string `yaml:"worker_pool"`
	WorkerRegistry string `yaml:"worker_registry"`
	WorkerKey      string `yaml:"worker_key"`
	WorkerName     string `yaml:"worker_name"`
	WorkerPort     uint16 `yaml:"worker_port"`
	WorkerIP       string `yaml:"worker_ip"`
}

var redisMongoEntry = mount.System{Name: "redismongo", Doc: "Tags with strategy: redis-mongo, whose numbers rise strictly across all nodes: Redis counts, in segments that a store grants. start, step, min_step and max_step are the tag's", Keys: []Key{
	mount.NewKey("redis", "string", "none", "URL of the Redis that counts, in the forms of store: redis://, rediss://, redis+sentinel://, redis+cluster:// or unix://"),
	mount.NewKey("store", "string", "the server's store", "URL of the store that grants the segments, such as mongodb://HOST/DATABASE. All nodes that share the Redis share it"),
	mount.NewKey("prefix", "string", redismongo.DefaultPrefix, "What the name of each tag's hash in Redis begins with"),
	mount.NewKey("threshold", "int", "20", "How much of a segment is used up when the next one is fetched, in percent, 1 to 100"),
	mount.NewKey("on_store_loss", "string", "refuse", "What to do when the store is away and Redis has run out: refuse, or extend, for which the store grants a reserve beforehand"),
	mount.NewKey("reserve", "int", "1000000", "With extend: how many numbers, at least, Redis holds when the next segment is due"),
	mount.NewKey("timeout", "duration", "1s", "How long Redis may take before the node issues from a segment of its own"),
	mount.NewKey("worker_pool", "string", "none", "Pool whose worker ID this node keeps by worker_name, worker_port and worker_ip, in a registry and in a file NAME:PORT:IP.properties of the data directory. Where the pool has a split, that is the ID of the one part that parts does not fix"),
	mount.NewKey("worker_registry", "string", "redis", "URL of the registry: of a Redis, or zk://HOST:2181/PATH"),
	mount.NewKey("worker_key", "string", redismongo.DefaultWorkersKey, "Name of the hash NAME.PORT.IP → worker ID in Redis"),
	mount.NewKey("worker_name", "string", "none", "Name of the application"),
	mount.NewKey("worker_port", "int", "none", "Port of the application, 1 to 65535"),
	mount.NewKey("worker_ip", "string", "the first address of this machine", "IP address of this node"),
}}

// options returns the issuers' options.
func (r *RedisMongoConfig) options() redismongo.Options {
	return redismongo.Options{
		Prefix: r.Prefix, Threshold: r.Threshold, Timeout: r.Timeout,
		OnStoreLoss: redismongo.StoreLoss(r.OnStoreLoss), Reserve: r.Reserve,
	}
}

// check judges the settings without connecting.
func (r *RedisMongoConfig) check(c Config) error {
	if r.Redis == "" {
		return compatError("redismongo.redis", r.Redis, "the URL of a Redis, such as redis://127.0.0.1:6379/0")
	}
	client, err := redisstore.NewClient(r.Redis, 0)
	if err != nil {
		return mount.Errorf(err, "compat.redismongo.redis")
	}
	_ = client.Close() // it has connected to nothing
	if r.Store != "" {
		if err := checkStore(r.Store); err != nil {
			return mount.Errorf(err, "compat.redismongo.store")
		}
	}
	if store := cmp.Or(r.Store, c.Store); isVolatile(store) {
		return compatError("redismongo.store", store, "a store that outlives the server: Redis remembers numbers that this one would grant again")
	}
	if path := boltPath(r.Store, c.Data); path != "" && filepath.Clean(path) == filepath.Clean(boltPath(c.Store, c.Data)) {
		return compatError("redismongo.store", r.Store, "none where it is the server's own store")
	}
	if err := r.checkWorker(c); err != nil {
		return err
	}
	return inCompat(r.options().Validate(), "")
}

// inCompat names the setting in which err occurred.
func inCompat(err error, prefix string) error {
	if v, ok := errors.AsType[*hapax.ValueError](err); ok {
		v.Field = "compat.redismongo." + prefix + v.Field
	}
	return err
}

// A redisMongo is what the strategy's issuers share.
type redisMongo struct {
	config *RedisMongoConfig
	log    *slog.Logger

	rdb     redis.UniversalClient
	store   ledger.Store
	own     *witness.Guarded // the store, if it is not the server's
	witness *witness.Witness // of that store
	observe atomic.Pointer[hapax.Observer]
}

// start connects, where the strategy is configured. Redis and the store may be away.
func (r *redisMongo) start(c Config, node *Node) error {
	if r == nil {
		return nil
	}
	rdb, err := redisstore.NewClient(r.config.Redis, cmp.Or(r.config.Timeout, redismongo.DefaultTimeout))
	if err != nil {
		return mount.Errorf(err, "compat.redismongo.redis")
	}
	redis.SetLogger(redisLog{r.log}) // it has one logger for the whole process
	r.rdb, r.store = rdb, ledger.Store{Store: node.Store, Ledger: node.Ledger}
	if r.config.Store == "" {
		return nil
	}
	o := newOpener(c, r.log)
	o.url, o.warned = r.config.Store, node.warned
	if r.witness, err = c.foreignWitness(redisMongoName); err != nil {
		return errors.Join(err, r.stop())
	}
	r.own, err = witness.GuardOpened(o.open, r.witness, o.guardOptions(node.changed))
	if err != nil {
		return errors.Join(fmt.Errorf("compat.redismongo.store: %w", err), r.stop())
	}
	r.store.Store = r.own
	return nil
}

// marks tell a trace how far a tag's numbers were granted.
func (r *redisMongo) marks() map[string]func(ctx context.Context, tag string) (int64, error) {
	if r == nil {
		return nil
	}
	return map[string]func(ctx context.Context, tag string) (int64, error){redisMongoStrategy: func(ctx context.Context, tag string) (int64, error) {
		t, err := r.store.Tag(ctx, tag)
		if errors.Is(err, hapax.ErrTagNotFound) {
			return 0, nil // nothing was granted yet
		}
		return t.Mark, err
	}}
}

// stop closes what start has opened, once no issuer is left.
func (r *redisMongo) stop() error {
	if r == nil || r.rdb == nil {
		return nil
	}
	var errs []error
	if r.own != nil {
		errs = append(errs, r.own.Close())
	}
	if r.witness != nil {
		errs = append(errs, r.witness.Close())
	}
	return errors.Join(append(errs, r.rdb.Close())...)
}

// observed has the issuers tell what happens to them.
func (r *redisMongo) observed(o hapax.Observer) {
	if r != nil {
		r.observe.Store(&o)
	}
}

// Open implements strategy.Strategy.
func (r *redisMongo) Open(ctx context.Context, tag hapax.Tag) (hapax.Issuer, error) {
	if r.rdb == nil {
		return nil, fmt.Errorf("%w: %q has strategy %s, in which a server issues; ask one with --server", hapax.ErrNotSupported, tag.Name, redisMongoStrategy)
	}
	opts := r.config.options()
	opts.Start, opts.Step, opts.MinStep, opts.MaxStep = tag.Start, tag.Step, tag.MinStep, tag.MaxStep
	opts.Observer = func(e hapax.Event) {
		if observe := r.observe.Load(); observe != nil {
			(*observe)(e)
		}
	}
	issuer, err := redismongo.New(ctx, r.rdb, r.store, tag.Name, opts)
	if err != nil {
		return nil, err // not a nil *Issuer in an interface
	}
	return issuer, nil
}
