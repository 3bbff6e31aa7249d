// Package serve mounts the Redis and MongoDB issuer in a server: tags with the strategy
// redis-mongo, and worker IDs that a registry keeps.
//
// A tag's segments come from a store, as those of any other tag do. What is not the one
// engine of the rest is the cursor inside a segment: all processes share it, in Redis, so
// that numbers rise across all of them; no cursor of one process can do that.
package serve

import (
	"cmp"
	"errors"
	"path/filepath"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/store/redisstore"
)

const (
	name         = "redismongo"  // in messages, and of the witness of compat.redismongo.store
	strategyName = "redis-mongo" // of tags whose numbers Redis counts
)

// System is the Redis and MongoDB issuer.
var System = mount.System{
	Name: name,
	Doc:  "Tags with strategy: redis-mongo, whose numbers rise strictly across all nodes: Redis counts, in segments that a store grants. start, step, min_step and max_step are the tag's",
	New:  func() mount.Settings { return new(Settings) },
	Keys: []mount.Key{
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
	},
}

// Settings are those of compat.redismongo.
type Settings struct {
	Redis       string        `yaml:"redis" url:"true"`
	Store       string        `yaml:"store" url:"true"`
	Prefix      string        `yaml:"prefix"`
	Threshold   int           `yaml:"threshold"`
	OnStoreLoss string        `yaml:"on_store_loss"`
	Reserve     int64         `yaml:"reserve"`
	Timeout     time.Duration `yaml:"timeout"`

	WorkerPool     string `yaml:"worker_pool"`
	WorkerRegistry string `yaml:"worker_registry" url:"true"`
	WorkerKey      string `yaml:"worker_key"`
	WorkerName     string `yaml:"worker_name"`
	WorkerPort     uint16 `yaml:"worker_port"`
	WorkerIP       string `yaml:"worker_ip"`
}

// options returns the issuers' options.
func (r *Settings) options() redismongo.Options {
	return redismongo.Options{
		Prefix: r.Prefix, Threshold: r.Threshold, Timeout: r.Timeout,
		OnStoreLoss: redismongo.StoreLoss(r.OnStoreLoss), Reserve: r.Reserve,
	}
}

// Doors implements mount.Settings.
func (r *Settings) Doors() []mount.Door { return nil }

// Mount implements mount.Settings.
func (r *Settings) Mount(p *mount.Plan) (mount.Mount, error) {
	if err := r.check(p); err != nil {
		return nil, err
	}
	m := &part{settings: r, issuers: &issuers{settings: r}}
	p.Strategies[strategyName] = m.issuers
	return m, nil
}

func (r *Settings) check(p *mount.Plan) error {
	if r.Redis == "" {
		return mount.Invalid("redismongo.redis", r.Redis, "the URL of a Redis, such as redis://127.0.0.1:6379/0")
	}
	client, err := redisstore.NewClient(r.Redis, 0)
	if err != nil {
		return mount.Errorf(err, "compat.redismongo.redis")
	}
	_ = client.Close() // it has connected to nothing
	if r.Store != "" {
		if err := p.Stores.Check(r.Store); err != nil {
			return mount.Errorf(err, "compat.redismongo.store")
		}
	}
	if store := cmp.Or(r.Store, p.Store); p.Stores.Volatile(store) {
		return mount.Invalid("redismongo.store", store, "a store that outlives the server: Redis remembers numbers that this one would grant again")
	}
	if file := p.Stores.File(r.Store); file != "" && filepath.Clean(file) == filepath.Clean(p.Stores.File(p.Store)) {
		return mount.Invalid("redismongo.store", r.Store, "none where it is the server's own store")
	}
	if err := r.checkWorker(p); err != nil {
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
