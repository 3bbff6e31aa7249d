package boltstore

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
)

// format is the version of everything in the file.
const format = "hapax store 2"

var (
	bucketStore = []byte("store")
	bucketTags  = []byte("tags")
	bucketRows  = []byte("rows")

	keyHeader = []byte("header")
	keyTotal  = []byte("total")
)

// A header says what the file is.
type header struct {
	Format   string   `json:"format"`
	ID       string   `json:"id"`
	Identity identity `json:"identity"`
	Closed   string   `json:"closed,omitempty"` // why nobody may use it yet: see driver.Founding

	// Of the contents, see renew; Before is the one that this one replaces.
	Generation string `json:"generation,omitempty"`
	Before     string `json:"before,omitempty"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum is a checksum of a record and of where it belongs.
func sum(bucket, key, text []byte) uint32 {
	separator := []byte{0}
	c := crc32.Update(0, castagnoli, bucket)
	for _, part := range [][]byte{separator, key, separator, text} {
		c = crc32.Update(c, castagnoli, part)
	}
	return c
}

// encode returns a record as it is stored.
func encode(bucket, key []byte, record any) ([]byte, error) {
	text, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", hapax.ErrInternal, err)
	}
	return seal(bucket, key, text), nil
}

// seal returns a value as it is stored.
func seal(bucket, key, text []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, sum(bucket, key, text)), text...)
}

// unseal is the reverse of seal.
func unseal(bucket, key, value []byte) ([]byte, error) {
	if len(value) < 4 || binary.LittleEndian.Uint32(value) != sum(bucket, key, value[4:]) {
		return nil, fmt.Errorf("%w: the record of %q in %s does not match its checksum", errDamaged, key, bucket)
	}
	return value[4:], nil
}

// decode reads a record that encode has made.
func decode(bucket, key, value []byte, record any) error {
	text, err := unseal(bucket, key, value)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, record); err != nil {
		return fmt.Errorf("%w: the record of %q in %s: %w", errDamaged, key, bucket, err)
	}
	return nil
}

// get reads a record if there is one.
func get(tx *bbolt.Tx, bucket, key []byte, record any) (bool, error) {
	value := tx.Bucket(bucket).Get(key)
	if value == nil {
		return false, nil
	}
	return true, decode(bucket, key, value, record)
}

// readHeader returns the zero header if the file is empty.
func readHeader(tx *bbolt.Tx) (header, error) {
	var head header
	if tx.Bucket(bucketStore) == nil {
		if name, _ := tx.Cursor().First(); name != nil {
			return head, fmt.Errorf("%w: it is a bbolt file of another program", errDamaged)
		}
		return head, nil
	}
	ok, err := get(tx, bucketStore, keyHeader, &head)
	switch {
	case err != nil:
		return head, err
	case !ok || head.ID == "":
		return head, fmt.Errorf("%w: it has no header", errDamaged)
	case head.Format != format:
		return head, fmt.Errorf("%w: its format is %q, and this version, hapax %s, reads %q; use the version that wrote it", errDamaged, head.Format, hapax.Version(), format)
	}
	for _, name := range [][]byte{bucketTags, bucketRows} {
		if tx.Bucket(name) == nil {
			return head, fmt.Errorf("%w: the bucket %s is missing", errDamaged, name)
		}
	}
	return head, nil
}

func writeHeader(tx *bbolt.Tx, head header) error {
	head.Format = format
	for _, name := range [][]byte{bucketStore, bucketTags, bucketRows} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return putMeta(tx, keyHeader, head)
}

// checkMeta fails if one of bbolt's two meta pages is damaged. bbolt itself
// would fall back to the other one, and with it to the state before the last
// acknowledged transaction.
//
// A meta page is a header of 16 bytes, 56 bytes of content and the FNV-1a hash
// of these; both are written when a file is created.
func checkMeta(file io.ReaderAt, pageSize int) error {
	for i := range int64(2) {
		var page [80]byte
		if _, err := file.ReadAt(page[:], i*int64(pageSize)); err != nil {
			return err
		}
		hash := fnv.New64a()
		hash.Write(page[16:72])
		if hash.Sum64() != binary.NativeEndian.Uint64(page[72:]) {
			return fmt.Errorf("%w: meta page %d is damaged, so that the last grants may be missing", errDamaged, i)
		}
	}
	return nil
}
