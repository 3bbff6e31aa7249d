// Package driver is what the author of a store needs: the primitive that an engine has to
// offer, and above it, once, the rules of tags, rows, pools and workers.
//
// A driver implements [KV], the primitive of three methods, and embeds a [Base], which makes
// a whole store of it:
//
//	type Store struct {
//		*driver.Base
//		…
//	}
//
//	s.Base = driver.NewBase(&s.calls, rows, driver.BaseOptions{})
//
// It adds StoreID, Ping and Close, and what only it knows: URL, connection, identity, checks of
// the engine's setup. Above the primitive the rules stand once: Advance, HandBack, Update, Revive,
// Delete and Heal judge what may be done to a tag, and [Leases] keeps pools and workers in rows.
//
// The suite in store/storetest shows whether a store keeps its promises.
package driver

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hapax-id/hapax"
)

// A Row is a small record of a table.
type Row struct {
	Name  string
	Value []byte
}

// Limits of rows.
const (
	MaxTableBytes = 256       // length of a table's name
	MaxNameBytes  = 256       // length of a row's name
	MaxValueBytes = 128 << 10 // length of a row's value
)

// Tables that this package and store/witness keep in a store; see TableBeats for the others.
const (
	tablePools   = "pools"
	tableWorkers = "workers/" // followed by the pool's name

	TableNodes    = "processes" // a row for each start of a process: what it is
	TableFence    = "fence"     // one row while nothing may be granted
	TableEvidence = "evidence"  // what the nodes know while there is a fence
)

// Rows are small records in named tables, which change by compare-and-swap.
// Names of tables and rows are valid UTF-8 without control characters, 1 to 256
// bytes. All methods are safe for concurrent use, read from the primary, and
// return when the context ends.
type Rows interface {
	// Row returns a row's value, or nil if there is no such row.
	Row(ctx context.Context, table, name string) ([]byte, error)

	// ListRows returns up to limit rows whose names come after the given one, in
	// the byte order of their names.
	ListRows(ctx context.Context, table, after string, limit int) ([]Row, error)

	// SwapRow writes next in one atomic, durable step if the stored value is
	// still old, and reports whether it did. A nil old stands for no row, a nil
	// next removes it; old and next differ. An error leaves the outcome unknown.
	SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error)

	// Shared reports whether other nodes may use the store at the same time.
	Shared() bool
}

// checkName judges the name of a table or a row.
func checkName(field, name string, most int) error { //nolint:unparam // tables and rows may have as many bytes today
	ok := len(name) >= 1 && len(name) <= most && utf8.ValidString(name)
	if !ok || strings.ContainsFunc(name, unicode.IsControl) {
		return &hapax.ValueError{Field: field, Value: name, Allowed: fmt.Sprintf("valid UTF-8 of 1 to %d bytes without control or invisible characters", most), Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// CheckSwap judges the arguments of SwapRow.
func CheckSwap(table, name string, old, next []byte) error {
	if err := checkName("table", table, MaxTableBytes); err != nil {
		return err
	}
	if err := checkName("row", name, MaxNameBytes); err != nil {
		return err
	}
	switch {
	case len(next) > MaxValueBytes:
		return &hapax.ValueError{Field: "value", Value: fmt.Sprintf("(%d bytes)", len(next)), Allowed: fmt.Sprintf("at most %d bytes", MaxValueBytes), Err: hapax.ErrInvalidArgument}
	case next != nil && len(next) == 0, old != nil && len(old) == 0:
		return &hapax.ValueError{Field: "value", Value: "", Allowed: "at least one byte, or nil for no row", Err: hapax.ErrInvalidArgument}
	case bytes.Equal(old, next):
		return &hapax.ValueError{Field: "value", Value: "(unchanged)", Allowed: "another value than the one that is expected", Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// CheckFormat refuses a store whose rows have another format than this build's. The place says where
// in the store the format stands; 0 is none.
func CheckFormat(place string, found, known int64) error {
	if found == known {
		return nil
	}
	return fmt.Errorf("%w: %s says format %d, and this version, hapax %s, knows format %d: use the version that has made the store, or a new place for a new one",
		hapax.ErrStoreCorrupt, place, found, hapax.Version(), known)
}

// OtherStore returns the error for a server, of the named engine, that holds another store than the
// one that was opened, or none if the ID is empty.
func OtherStore(engine, found, opened string) error {
	if found == "" {
		return fmt.Errorf("%w: %s: the server came back without its data, or the data was deleted", hapax.ErrStoreReplaced, engine)
	}
	return fmt.Errorf("%w: %s: the server now holds store %.40q, not %q", hapax.ErrStoreReplaced, engine, found, opened)
}

// How many rows are asked for at a time: at first, and when there are many.
const (
	listPage  = 500
	listPages = 20 * listPage
)

// AllRows calls f for every row of a table, in the byte order of their names.
func AllRows(ctx context.Context, rows Rows, table string, f func(Row) error) error {
	after := ""
	for size := listPage; ; size = listPages {
		page, err := rows.ListRows(ctx, table, after, size)
		if err != nil {
			return err
		}
		for _, row := range page {
			if err := f(row); err != nil {
				return err
			}
			after = row.Name
		}
		if len(page) < size {
			return nil
		}
	}
}

// NewKey returns a fresh key of 128 random bits and the hash that is stored in
// its place.
func NewKey() (key hapax.GrantKey, hash string) {
	var b [16]byte
	rand.Read(b[:]) // never fails
	key = hapax.GrantKey(hex.EncodeToString(b[:]))
	return key, HashKey(key)
}

// HashKey returns what is stored in place of a key: 32 hexadecimal digits, or
// nothing for no key.
func HashKey(key hapax.GrantKey) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// holds reports whether a key is the one whose hash is stored.
func holds(key hapax.GrantKey, hash string) bool {
	return key != "" && hash != "" && subtle.ConstantTimeCompare([]byte(HashKey(key)), []byte(hash)) == 1
}
