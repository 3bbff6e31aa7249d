//go:build !purego

package codec

// putBlock writes a block in little-endian order with one store. AES reads the
// block with one load, and a load that spans two recent stores waits until both
// have reached the cache, which took more time than AES itself.
//
//go:noescape
func putBlock(dst *[16]byte, lo, hi uint64)
