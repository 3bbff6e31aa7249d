// Package uidgen mounts uid-generator in a server: numbers of its layouts, as the tag and
// pool uidgen.
package uidgen

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/uidgen"
	"github.com/hapax-id/hapax/internal/compat/database"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/plan"
)

// name is uid-generator under compat.
const name = "uidgen"

// witnessFile, in the data directory, keeps the last key of WORKER_NODE, by which a database
// that hands out keys again is refused.
const witnessFile = "uidgen-worker-node"

// System is uid-generator.
var System = mount.System{
	Name:   name,
	Doc:    "Numbers of uid-generator's layouts, as the tag and pool uidgen",
	New:    func() mount.Settings { return new(Settings) },
	Import: importCommand,
	Keys: []mount.Key{
		mount.NewKey("table", "string", "none", "mysql:// URL of the database with WORKER_NODE, where each start takes a worker ID; without it one is leased from the server's store"),
		mount.NewKey("layout", "string", "uidgenerator-28-22-13", "Name or spec of the layout; the default's time ran out on 2024-11-20"),
		mount.NewKey("boost_power", "int", "3", "A burst may run 2^boost_power ticks ahead of the clock, 1 to 15"),
	},
	Ignored: []mount.Key{
		mount.NewKey("padding_factor", "int", "none", "Accepted, without effect: numbers are made when they are taken"),
		mount.NewKey("schedule_interval", "duration", "none", "Accepted, without effect, for the same reason"),
	},
}

// Settings are those of compat.uidgen.
type Settings struct {
	Table      string `yaml:"table" url:"true"`
	Layout     string `yaml:"layout"`
	BoostPower int    `yaml:"boost_power"`
}

// maxBoost is the largest boost_power.
const maxBoost = 15

// Doors implements mount.Settings.
func (u *Settings) Doors() []mount.Door { return nil }

// Mount implements mount.Settings.
func (u *Settings) Mount(p *mount.Plan) (mount.Mount, error) {
	if u.BoostPower < 0 || u.BoostPower > maxBoost {
		return nil, mount.Invalid("uidgen.boost_power", u.BoostPower, fmt.Sprintf("1 to %d", maxBoost))
	}
	text := cmp.Or(u.Layout, hapax.LayoutUIDGenerator28)
	layout, err := hapax.ParseLayout(text)
	if err == nil && !time.Now().Before(layout.Ends()) {
		err = fmt.Errorf("%w: compat.uidgen.layout: the time of %s ran out at %s; hapax import uid-generator finds a layout to go on with", hapax.ErrTimeExhausted, text, layout.Ends().Format(time.RFC3339))
	}
	if err = cmp.Or(err, database.Check("uidgen.table", u.Table)); err != nil {
		return nil, err
	}
	pool := service.PoolConfig{Layout: text, MaxAhead: uidgen.Ahead(layout, cmp.Or(u.BoostPower, uidgen.DefaultBoostPower))}
	return part{u.Table, layout}, p.Define(name, uidgen.DefaultPool, pool)
}

// A part is uid-generator's part of a server.
type part struct {
	table  string
	layout hapax.Layout
}

// Open implements mount.Mount.
func (p part) Open(ctx context.Context, h *mount.Host) error {
	if p.table == "" {
		return nil
	}
	err := database.With(ctx, p.table, func(ctx context.Context, db *sql.DB) error {
		id, err := uidgen.Table{DB: db, Witness: filepath.Join(h.Data, witnessFile)}.Worker(ctx, p.layout)
		pool := h.Use[uidgen.DefaultPool]
		pool.Workers = strconv.FormatInt(id, 10)
		pool.Grant, pool.MaxGrant = hapax.DefaultGrant, hapax.DefaultMaxGrant // no other start waits for the rest of a crashed one's time
		h.Use[uidgen.DefaultPool] = pool.Lending(hapax.WorkerRange{}, "WORKER_NODE")
		return err
	})
	if err != nil {
		return fmt.Errorf("compat.uidgen.table: %w", err)
	}
	return nil
}

// Answer implements mount.Mount.
func (part) Answer(*service.Service) ([]mount.Answer, error) { return nil, nil }

var columnName = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]{0,63}\.[A-Za-z_$][A-Za-z0-9_$]{0,63}$`)

// ColumnRange reads the smallest and the largest number in TABLE.COLUMN of a MySQL
// database, but for those below zero, of which it tells how many there are: the cached
// generator issued such when its time was over, and no layout does.
func ColumnRange(ctx context.Context, databaseURL, column string) (used plan.Span, negative int64, err error) {
	if !columnName.MatchString(column) {
		return used, 0, &hapax.ValueError{Field: "column", Value: column, Allowed: "TABLE.COLUMN", Err: hapax.ErrInvalidArgument}
	}
	table, field, _ := strings.Cut(column, ".")
	err = database.With(ctx, databaseURL, func(ctx context.Context, db *sql.DB) error {
		var least, most sql.NullInt64
		query := fmt.Sprintf("SELECT MIN(CASE WHEN `%[1]s` >= 0 THEN `%[1]s` END), MAX(`%[1]s`), COUNT(CASE WHEN `%[1]s` < 0 THEN 1 END) FROM `%[2]s`", field, table) //nolint:gosec // names of a plain form
		if err := db.QueryRowContext(ctx, query).Scan(&least, &most, &negative); err != nil {
			return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, column, err)
		}
		if !least.Valid {
			return fmt.Errorf("%w: %s has no numbers from 0 on, and %d below; want the column with the numbers in use", hapax.ErrInvalidArgument, column, negative)
		}
		used = plan.Span{Min: hapax.ID(least.Int64), Max: hapax.ID(most.Int64)}
		return nil
	})
	return used, negative, err
}
