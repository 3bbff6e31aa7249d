package audit

import (
	"math/bits"
	"slices"
)

const (
	smallSort = 1 << 6 // up to how many keys a comparing sort is quicker
	digitBits = 11
)

// sortKeys sorts keys and returns the one of the two that holds them then. The scratch
// space is as long as the keys. It goes by digits, the lowest first, and only by the bits
// in which keys differ.
func sortKeys(keys, scratch []uint64) []uint64 {
	if len(keys) <= smallSort || slices.IsSorted(keys) {
		slices.Sort(keys)
		return keys
	}
	differ := uint64(0)
	for _, k := range keys {
		differ |= k ^ keys[0]
	}
	const mask = 1<<digitBits - 1
	for shift := bits.TrailingZeros64(differ); differ>>(shift&63) != 0 && shift < 64; shift += digitBits {
		var at [1 << digitBits]int // how many keys have a digit, then where those are put
		for _, k := range keys {
			at[k>>(shift&63)&mask]++
		}
		sum := 0
		for i, n := range at {
			at[i] = sum
			sum += n
		}
		for _, k := range keys {
			to := &at[k>>(shift&63)&mask]
			scratch[*to] = k
			*to++
		}
		keys, scratch = scratch, keys
	}
	return keys
}
