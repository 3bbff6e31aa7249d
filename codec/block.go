package codec

import "encoding/binary"

// putBlockPortable writes a block in little-endian order.
func putBlockPortable(dst *[16]byte, lo, hi uint64) {
	binary.LittleEndian.PutUint64(dst[:8], lo)
	binary.LittleEndian.PutUint64(dst[8:], hi)
}
