//go:build purego || !amd64

package codec

func putBlock(dst *[16]byte, lo, hi uint64) { putBlockPortable(dst, lo, hi) }
