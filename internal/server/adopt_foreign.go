package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/driver"
)

// AdoptForeign makes the tables of a foreign system usable again after
// it was set back: it raises the row with a key, or every row if that is empty, above what
// this node's witness knows, and by the margin for the numbers that the foreign system's own nodes have
// issued. It is for a node that is stopped (else ErrStoreLocked): a service does it in one
// that runs. Where nothing is wrong it changes nothing.
func AdoptForeign(ctx context.Context, c Config, system, key string, margin int64, dryRun bool) (api.ForeignAdoption, error) {
	var a api.ForeignAdoption
	owner, err := c.owner(system)
	if err != nil {
		return a, err
	}
	if _, err := os.Stat(c.Data); err != nil {
		return a, fmt.Errorf("%w: the data directory: %w", hapax.ErrStoreUnavailable, err)
	}
	w, err := c.foreignWitness(system)
	if errors.Is(err, hapax.ErrStoreLocked) {
		return a, fmt.Errorf("%w: a server runs in the data directory %s, and does not answer; give its --server, or stop it", hapax.ErrStoreLocked, c.Data)
	}
	if err != nil {
		return a, err
	}
	table, err := owner.OpenTable(ctx, mount.TableOptions{Timeout: c.StoreTimeout, Witness: w, Warn: func(string, string) {}})
	if err == nil {
		var found driver.Foreign
		found, err = table.Adopt(ctx, key, margin, dryRun)
		a, err = health.ForeignAdoptionOf(found), errors.Join(err, table.Close())
	}
	return a, errors.Join(err, w.Close())
}

// owner returns the settings of a system with tables of its own.
func (c Config) owner(system string) (mount.Owner, error) {
	if owner, ok := c.Mounts[system].(mount.Owner); ok && owner.HasTable() {
		return owner, nil
	}
	return nil, &hapax.ValueError{
		Field: "--foreign", Value: system, Err: hapax.ErrInvalidArgument,
		Allowed: strings.Join(Owners(), " or ") + ", with its table or databases in the configuration: give that with --config or $HAPAX_CONFIG",
	}
}

// Owners are the names of the systems with tables of their own.
func Owners() (names []string) {
	for _, s := range systems {
		if _, ok := s.New().(mount.Owner); ok {
			names = append(names, s.Name)
		}
	}
	return names
}
