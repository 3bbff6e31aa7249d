package server

import (
	"errors"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

func TestRedisMongoSettings(t *testing.T) {
	const worker = "worker_pool: default, worker_name: app, worker_port: 80, worker_ip: 10.0.0.1"
	const split = "pools: {default: {split: 'service:8:1,rack:2:1', parts: {rack: 1}}}\n"
	for name, c := range map[string]struct{ section, rest, names string }{
		"good":                     {"redis: 'redis://h'", "", ""},
		"extend":                   {"redis: 'redis://h', on_store_loss: extend, reserve: 10", "", ""},
		"sentinel":                 {"redis: 'redis+sentinel://a,b,c/m'", "", ""},
		"another store":            {"redis: 'redis://h', store: 'mongodb://h/d'", "store: 'memory:'", ""},
		"no redis":                 {"threshold: 20", "", "compat.redismongo.redis"},
		"no URL":                   {"redis: 'h:6379'", "", "compat.redismongo.redis"},
		"no Redis":                 {"redis: 'mongodb://h'", "", "compat.redismongo.redis"},
		"a store that forgets":     {"redis: 'redis://h'", "store: 'memory:'", "compat.redismongo.store"},
		"its own that forgets":     {"redis: 'redis://h', store: 'memory:'", "", "compat.redismongo.store"},
		"the same file":            {"redis: 'redis://h', store: 'bolt:'", "", "compat.redismongo.store"},
		"no store":                 {"redis: 'redis://h', store: 'ftp://h'", "", "compat.redismongo.store"},
		"threshold":                {"redis: 'redis://h', threshold: 101", "", "compat.redismongo.threshold"},
		"on_store_loss":            {"redis: 'redis://h', on_store_loss: wait", "", "compat.redismongo.on_store_loss"},
		"reserve without extend":   {"redis: 'redis://h', reserve: 5", "", "compat.redismongo.reserve"},
		"prefix":                   {"redis: 'redis://h', prefix: '{'", "", "compat.redismongo.prefix"},
		"timeout":                  {"redis: 'redis://h', timeout: -1s", "", "compat.redismongo.timeout"},
		"unknown":                  {"redis: 'redis://h', mongo: x", "", "compat.redismongo.mongo"},
		"without EVAL":             {"redis: 'redis://h', without_eval: true", "", ""},
		"collection":               {"redis: 'redis://h', collection: sequence", "store: 'mongodb://h/d'", ""},
		"collection elsewhere":     {"redis: 'redis://h', collection: sequence, collection_url: 'mongodb://h/d'", "", ""},
		"collection nowhere":       {"redis: 'redis://h', collection: sequence", "", "compat.redismongo.collection_url"},
		"collection in no MongoDB": {"redis: 'redis://h', collection: sequence, store: 'etcd://h'", "store: 'mongodb://h/d'", "compat.redismongo.collection_url"},
		"collection's bad URL":     {"redis: 'redis://h', collection: sequence, collection_url: 'mongodb://h/d.e'", "", "compat.redismongo.collection_url"},
		"no collection":            {"redis: 'redis://h', collection_url: 'mongodb://h/d'", "", "compat.redismongo.collection"},
		"collection of the store":  {"redis: 'redis://h', collection: hapax_tags", "store: 'mongodb://h/d'", "compat.redismongo.collection"},
		"no strategy":              {"redis: 'redis://h'", "tags: {t: {strategy: redis-mongodb}}", "tags.t.strategy"},
		"worker":                   {"redis: 'redis://h', " + worker, "", ""},
		"worker of a part":         {"redis: 'redis://h', " + worker, split, ""},
		"worker by zookeeper":      {"redis: 'redis://h', worker_registry: 'zk://h/p', " + worker, "", ""},
		"worker without a pool":    {"redis: 'redis://h', worker_name: x", "", "compat.redismongo.worker_name needs worker_pool"},
		"worker of no pool":        {"redis: 'redis://h', worker_pool: x, worker_name: app, worker_port: 80", "", "compat.redismongo.worker_pool"},
		"worker without a name":    {"redis: 'redis://h', worker_pool: default, worker_port: 80, worker_ip: 10.0.0.1", "", "compat.redismongo.worker_name"},
		"worker with a path":       {"redis: 'redis://h', worker_pool: default, worker_name: ../x, worker_port: 80, worker_ip: 10.0.0.1", "", "compat.redismongo.worker_name"},
		"worker without a port":    {"redis: 'redis://h', worker_pool: default, worker_name: x, worker_ip: 10.0.0.1", "", "compat.redismongo.worker_port"},
		"worker without an IP":     {"redis: 'redis://h', worker_pool: default, worker_name: x, worker_port: 80, worker_ip: h", "", "compat.redismongo.worker_ip"},
		"worker and identity":      {"redis: 'redis://h', " + worker, "pools: {default: {identity: 'fixed:1'}}", "compat.redismongo.worker_pool"},
		"worker of two parts":      {"redis: 'redis://h', " + worker, strings.Replace(split, "rack: 1", "", 1), "compat.redismongo.worker_pool"},
		"worker of no part":        {"redis: 'redis://h', " + worker, strings.Replace(split, "rack: 1", "rack: 1, service: 1", 1), "compat.redismongo.worker_pool"},
		"worker by no registry":    {"redis: 'redis://h', worker_registry: 'zk:///p', " + worker, "", "compat.redismongo.worker_registry"},
		"worker's key, zookeeper":  {"redis: 'redis://h', worker_registry: 'zk://h', worker_key: k, " + worker, "", "compat.redismongo.worker_key"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := Load(Sources{File: writeFile(t, "compat: {redismongo: {"+c.section+"}}\n"+c.rest)})
			if err == nil {
				config.HTTP, config.RESP, config.Data = "127.0.0.1:0", "", t.TempDir()
				err = Check(t.Context(), config)
			}
			switch {
			case c.names == "" && err != nil:
				t.Error(err)
			case c.names != "" && (!errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), c.names)):
				t.Errorf("%v; want an error about %s", err, c.names)
			}
		})
	}
}

// Passwords are neither shown nor told in errors.
func TestRedisMongoPasswords(t *testing.T) {
	c, err := Load(Sources{File: writeFile(t, "compat: {redismongo: {redis: 'redis://u:secret@h', store: 'mongodb://u:secret@h/d', worker_registry: 'zk://u:secret@h', collection: c, collection_url: 'mongodb://u:secret@h/d'}}")})
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.AppendYAML(nil)
	if err != nil || strings.Contains(string(text), "secret") || !strings.Contains(string(text), "redis: redis://u:xxxxx@h") {
		t.Errorf("%v:\n%s", err, text[max(0, len(text)-400):])
	}
	for _, section := range []string{"redis: 'redis://u:sec%ret@h'", "redis: 'redis://u:sec@ret@h/x?y'", "redis: 'redis://h', store: 'mongodb://u:sec@ret@h'"} {
		c, err := Load(Sources{File: writeFile(t, "compat: {redismongo: {"+section+"}}")})
		if err == nil {
			c.HTTP, c.RESP, c.Data = "127.0.0.1:0", "", t.TempDir()
			err = Check(t.Context(), c)
		}
		if err == nil || strings.Contains(err.Error(), "ret") {
			t.Errorf("%s: %v", section, err)
		}
	}
}

// The password of the account in Redis comes from a file or a variable, and is given once.
func TestRedisMongoPasswordBeside(t *testing.T) {
	env := func(value string) func(string) (string, bool) {
		return func(name string) (string, bool) {
			if name == "HAPAX_REDISMONGO_PASSWORD" {
				return value, value != ""
			}
			return "", false
		}
	}
	one, two := writeFile(t, "secr:t@/\n"), writeFile(t, "secret\nsecret\n")
	for name, c := range map[string]struct{ section, variable, names string }{
		"file":             {"redis: 'redis://app@h', password_file: " + one, "", ""},
		"variable":         {"redis: 'redis+sentinel://a:1,b:2/m'", "secr:t@/", ""},
		"both":             {"redis: 'redis://h', password_file: " + one, "secret", "twice"},
		"in the URL, too":  {"redis: 'redis://:secret@h'", "secret", "compat.redismongo.redis"},
		"two lines":        {"redis: 'redis://h', password_file: " + two, "", "compat.redismongo.password_file"},
		"for what is none": {"redis: 'h:6379'", "secret", "compat.redismongo.redis"},
		"there is no file": {"redis: 'redis://h', password_file: /nowhere", "", "compat.redismongo.password_file"},
	} {
		config, err := Load(Sources{File: writeFile(t, "compat: {redismongo: {"+c.section+"}}"), Env: env(c.variable)})
		if err == nil {
			config.HTTP, config.RESP, config.Data = "127.0.0.1:0", "", t.TempDir()
			err = Check(t.Context(), config)
		}
		switch {
		case c.names == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.names != "" && (!errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), c.names) || strings.Contains(err.Error(), "secr")):
			t.Errorf("%s: %v; want an error about %s", name, err, c.names)
		}
	}
}
