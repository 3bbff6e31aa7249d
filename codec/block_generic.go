//go:build purego || !amd64

package codec

import "encoding/binary"

// putBlock writes a block in little-endian order.
func putBlock(dst *[16]byte, lo, hi uint64) {
	binary.LittleEndian.PutUint64(dst[:8], lo)
	binary.LittleEndian.PutUint64(dst[8:], hi)
}
