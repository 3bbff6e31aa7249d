package witness

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// The format of the rows that this version keeps in a store. It is raised when another
// version would misread them, so that no two versions run side by side that do.
const (
	formatNow = 3
	rowFormat = "format" // of driver.TableGuard
)

// A formatRow says in which format a store's rows are, and which version wrote that.
type formatRow struct {
	Format int64  `json:"format"`
	By     string `json:"by"`
}

// checkFormat refuses a store whose rows have another format than this version knows. It
// returns the store's row; nil: it has none.
func checkFormat(ctx context.Context, s driver.Rows) (*formatRow, error) {
	raw, err := s.Row(ctx, driver.TableGuard, rowFormat)
	if err != nil || raw == nil {
		return nil, unavailable(err)
	}
	var row formatRow // a newer version's may say more
	if err := json.Unmarshal(raw, &row); err != nil {
		return nil, fmt.Errorf("%w: row %q of table %q: %w", hapax.ErrStoreCorrupt, rowFormat, driver.TableGuard, err)
	}
	if row.Format != formatNow {
		return nil, fmt.Errorf("%w: the store's rows have format %d, written by hapax %s, and this version, hapax %s, knows format %d: use the version that wrote them",
			hapax.ErrStoreCorrupt, row.Format, row.By, hapax.Version(), formatNow)
	}
	return &row, nil
}

// CheckFormat refuses a store whose rows have another format than this version knows.
func CheckFormat(ctx context.Context, s driver.Rows) error {
	_, err := checkFormat(ctx, s)
	return err
}

// FenceIn returns why a fence's row keeps everybody from the store: ErrFenced, or, where it says that the
// store is being filled or was retired, a *driver.ClosedError or a *driver.RetiredError. nil: there is no row.
func FenceIn(raw []byte) error {
	if raw == nil {
		return nil
	}
	f, err := decodeFence(raw)
	if err == nil {
		err = fenceError(f)
	}
	return err
}

// claim refuses a store whose rows have another format. If they have none yet, it returns the row to
// write together with the process's own, so that no version with another format joins; else nil.
func claim(ctx context.Context, s store) (*driver.Swap, error) {
	told, err := checkFormat(ctx, s)
	if err != nil || told != nil {
		return nil, err
	}
	value, err := json.Marshal(formatRow{formatNow, hapax.Version()})
	return &driver.Swap{Key: guardRow(rowFormat), Next: value}, err
}

// checkKind refuses a log whose first record is of another format than this version's.
func checkKind(first []byte, path string) error {
	if found, _, _ := strings.Cut(string(first), "\t"); found != kindSnapshot {
		return fmt.Errorf("%w: the witness %s begins with %.40q, and this version, hapax %s, reads the format %s: use the version that wrote it",
			hapax.ErrStoreCorrupt, path, found, hapax.Version(), kindSnapshot)
	}
	return nil
}
