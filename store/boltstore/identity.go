package boltstore

import (
	"fmt"
	"os"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/internal/fileid"
)

// An identity tells a file from its copies.
type identity = fileid.Identity

// An identifier tells the identity of an open file.
type identifier func(*os.File) (identity, error)

// identify tells the identity of a file on this machine.
func identify(file *os.File) (identity, error) { return fileid.Of(file) }

// copied returns the error of a copied file: what differs, and what to do about it.
func copied(path string, diff []string) error {
	return fmt.Errorf("%w: %s: %s; if the original will never be used again, raise every mark with: hapax adopt --store bolt:%s, and --data DIR where its server has another data directory", hapax.ErrStoreCopied, path, strings.Join(diff, ", "), path)
}
