package server

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/hapax-id/hapax"
	columns "github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/store/driver"
)

// How tells OpenPlain what to do with a store.
type How int

// The ways to open a store.
const (
	Looking  How = iota // it is read, and nothing is changed
	Existing            // it is written to, and not made
	Making              // it is made where there is none: see driver.WithFounding
)

// OpenPlain opens the store that is configured without a guard, for commands that read and write its rows as
// they are. A *driver.WouldChangeError where there is none, and none may be made. Close must be called.
func OpenPlain(ctx context.Context, c Config, how How, log *slog.Logger) (driver.Store, error) {
	o := newOpener(c, log)
	if isVolatile(o.url) {
		return nil, &hapax.ValueError{Field: "store", Value: o.url, Allowed: "a store that outlives its process", Err: hapax.ErrInvalidArgument}
	}
	o.look = how == Looking
	if how == Existing {
		o.existing = func() bool { return true }
		if path := boltPath(o.url, o.data); path != "" {
			if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
				return nil, &driver.WouldChangeError{What: driver.NewStore}
			}
		}
	}
	return o.open(ctx)
}

// StoreURL returns the URL of the configured store, without secrets and with a whole path.
func (c Config) StoreURL() string {
	path := boltPath(c.Store, c.Data)
	if path == "" {
		return redact(c.Store)
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	return "bolt:" + path
}

// SameFile reports whether two configurations name one file of an embedded store.
func SameFile(a, b Config) bool {
	x, errX := os.Stat(boltPath(a.Store, a.Data))
	y, errY := os.Stat(boltPath(b.Store, b.Data))
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// LoadStore returns a configuration with one store, and nothing else that could name it: its URL, or where that
// stands, env:NAME or file:PATH.
func LoadStore(text string, env func(string) (string, bool)) (Config, error) {
	address, err := columns.Resolve(text)
	if err != nil {
		return Config{}, err
	}
	return Load(Sources{
		Env: func(name string) (string, bool) {
			// A password that is meant for the configured store must not go to this one.
			if strings.HasPrefix(name, "HAPAX_STORE") && name != "HAPAX_STORE_TIMEOUT" {
				return "", false
			}
			return env(name)
		},
		Flags: map[string]string{"store": address},
	})
}
