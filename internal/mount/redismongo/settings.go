// Package redismongo mounts the Redis and MongoDB issuer in a server: tags with the strategy
// redis-mongo, and worker IDs that a registry keeps.
//
// A tag's segments come from a store, as those of any other tag do. What is not the one
// engine of the rest is the cursor inside a segment: all processes share it, in Redis, so
// that numbers rise across all of them; no cursor of one process can do that.
package redismongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/redismongo"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/store/mongostore"
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
	Env:  []string{PasswordEnv},
	New:  func() mount.Settings { return new(Settings) },

	Import: importCommand,

	Keys: []mount.Key{
		mount.NewKey("redis", "string", "none", "URL of the Redis that counts, in the forms of store: redis://, rediss://, redis+sentinel://, redis+cluster:// or unix://"),
		mount.NewKey("password_file", "string", "none", "File with the password of the account in Redis, where the URL has none; instead, the variable HAPAX_REDISMONGO_PASSWORD may hold it"),
		mount.NewKey("without_eval", "bool", "false", "Count in transactions (WATCH, MULTI, EXEC) instead of scripts, for a Redis that does not let an account run EVAL. Slower: three round trips for each call, and the calls of a node go one after the other"),
		mount.NewKey("store", "string", "the server's store", "URL of the store that grants the segments, such as mongodb://HOST/DATABASE. All nodes that share the Redis share it"),
		mount.NewKey("prefix", "string", redismongo.DefaultPrefix, "What the name of each tag's hash in Redis begins with"),
		mount.NewKey("threshold", "int", "20", "How much of a segment is used up when the next one is fetched, in percent, 1 to 100"),
		mount.NewKey("on_store_loss", "string", "refuse", "What to do when the store is away and Redis has run out: refuse, or extend, for which the store grants a reserve beforehand"),
		mount.NewKey("reserve", "int", "1000000", "With extend: how many numbers, at least, Redis holds when the next segment is due"),
		mount.NewKey("timeout", "duration", "1s", "How long Redis may take before the node issues from a segment of its own"),
		mount.NewKey("collection", "string", "none", "Name of a collection in MongoDB in which each segment is noted, as {bizTag, max, step, timestamp}, for programs that watch it. Nothing is granted from it, and nobody waits for it"),
		mount.NewKey("collection_url", "string", "the store that grants the segments, where that is MongoDB", "URL of the database with the collection, mongodb://HOST/DATABASE"),
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
	Redis        string        `yaml:"redis" url:"true"`
	PasswordFile string        `yaml:"password_file"`
	WithoutEval  bool          `yaml:"without_eval"`
	Store        string        `yaml:"store" url:"true"`
	Prefix       string        `yaml:"prefix"`
	Threshold    int           `yaml:"threshold"`
	OnStoreLoss  string        `yaml:"on_store_loss"`
	Reserve      int64         `yaml:"reserve"`
	Timeout      time.Duration `yaml:"timeout"`

	Collection    string `yaml:"collection"`
	CollectionURL string `yaml:"collection_url" url:"true"`

	WorkerPool     string `yaml:"worker_pool"`
	WorkerRegistry string `yaml:"worker_registry" url:"true"`
	WorkerKey      string `yaml:"worker_key"`
	WorkerName     string `yaml:"worker_name"`
	WorkerPort     uint16 `yaml:"worker_port"`
	WorkerIP       string `yaml:"worker_ip"`

	password string // of the account in Redis
}

var _ mount.Secret = (*Settings)(nil)

// PasswordEnv is the variable that may hold the password of the account in Redis.
const PasswordEnv = "HAPAX_REDISMONGO_PASSWORD" //nolint:gosec // its name

// ReadSecrets implements mount.Secret.
func (r *Settings) ReadSecrets(env func(string) (string, bool)) error {
	lines, err := mount.Passwords("compat.redismongo.password_file", r.PasswordFile, PasswordEnv, env)
	switch {
	case err != nil || len(lines) == 0:
		return err
	case len(lines) > 1:
		return mount.Invalid("redismongo.password_file", fmt.Sprintf("%d lines", len(lines)), "one line")
	}
	r.password = lines[0]
	return nil
}

// redisURL returns the URL of the Redis that counts, with the password.
func (r *Settings) redisURL() (string, error) {
	if _, has := splitPassword(r.Redis); has != "" && r.password != "" {
		return "", mount.Invalid("redismongo.redis", "(a URL with a password)", "one without, since the password is given beside it, too")
	}
	return joinPassword(r.Redis, r.password), nil
}

// collectionURL returns the URL of the database with the collection, for a server with
// that store.
func (r *Settings) collectionURL(own string) string {
	return cmp.Or(r.CollectionURL, r.Store, own)
}

// options returns the issuers' options.
func (r *Settings) options() redismongo.Options {
	return redismongo.Options{
		Prefix: r.Prefix, Threshold: r.Threshold, Timeout: r.Timeout,
		OnStoreLoss: redismongo.StoreLoss(r.OnStoreLoss), Reserve: r.Reserve, WithoutEval: r.WithoutEval,
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
	counting, err := r.redisURL()
	if err != nil {
		return err
	}
	client, err := redisstore.NewClient(counting, 0)
	if err != nil {
		return mount.Errorf(err, "compat.redismongo.redis")
	}
	_ = client.Close() // it has connected to nothing
	if err := r.checkCollection(p); err != nil {
		return err
	}
	if r.Store != "" {
		if err := p.Stores.Check(r.Store); err != nil {
			return mount.Errorf(err, "compat.redismongo.store")
		}
	}
	if store := cmp.Or(r.Store, p.Store); p.Stores.Volatile(store) {
		return mount.Invalid("redismongo.store", store, "a store that outlives the server: Redis remembers numbers that this one would grant again")
	}
	// An embedded store is locked by the first that opens it, even against the same process.
	if file := p.Stores.File(r.Store); file != "" && filepath.Clean(file) == filepath.Clean(p.Stores.File(p.Store)) {
		return mount.Invalid("redismongo.store", r.Store, "none where it is the server's own store")
	}
	if err := r.checkWorker(p); err != nil {
		return err
	}
	return inCompat(r.options().Validate(), "")
}

// checkCollection judges where the collection is.
func (r *Settings) checkCollection(p *mount.Plan) error {
	at := r.collectionURL(p.Store)
	switch {
	case r.Collection == "" && r.CollectionURL != "":
		return mount.Invalid("redismongo.collection", "", "the name of a collection, beside collection_url")
	case r.Collection == "":
		return nil
	case !strings.HasPrefix(at, "mongodb://") && !strings.HasPrefix(at, "mongodb+srv://"):
		return mount.Invalid("redismongo.collection_url", r.CollectionURL, "mongodb://HOST/DATABASE, where the store that grants the segments is not in MongoDB")
	}
	if err := checkCollectionName(r.Collection); err != nil {
		return inCompat(err, "")
	}
	db, err := mongostore.NewDatabase(at, 0)
	if err != nil {
		return mount.Errorf(err, "compat.redismongo.collection_url")
	}
	return db.Client().Disconnect(context.Background()) // it has asked nobody for anything
}

// maxCollectionBytes is MongoDB's own limit, less room for the database's name.
const maxCollectionBytes = 120

// checkCollectionName refuses names that MongoDB does not take, and those of a store.
func checkCollectionName(name string) error {
	if hapax.ValidateName("collection", name) != nil || len(name) > maxCollectionBytes || strings.Contains(name, "$") ||
		strings.HasPrefix(name, "system.") || strings.HasPrefix(name, mongostore.DefaultPrefix) {
		return &hapax.ValueError{Field: "collection", Value: name, Allowed: fmt.Sprintf("up to %d bytes without $, not beginning with system. or %s", maxCollectionBytes, mongostore.DefaultPrefix), Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// inCompat names the setting in which err occurred.
func inCompat(err error, prefix string) error {
	if v, ok := errors.AsType[*hapax.ValueError](err); ok {
		v.Field = "compat.redismongo." + prefix + v.Field
	}
	return err
}
