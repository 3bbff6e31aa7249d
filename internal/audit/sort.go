package audit

import "slices"

// smallSort is up to how many keys a comparing sort is quicker.
const smallSort = 1 << 10

// sortKeys sorts by the digits of 8 bits, the lowest first, and leaves out those
// that all keys share. The scratch space is as long as the keys. It returns the
// one of the two that holds the result.
func sortKeys(keys, scratch []uint64) []uint64 {
	if len(keys) <= smallSort {
		slices.Sort(keys)
		return keys
	}
	var counts [8][256]uint32
	sorted, last := true, keys[0]
	for _, k := range keys {
		sorted = sorted && last <= k
		last = k
		counts[0][byte(k)]++
		counts[1][byte(k>>8)]++
		counts[2][byte(k>>16)]++
		counts[3][byte(k>>24)]++
		counts[4][byte(k>>32)]++
		counts[5][byte(k>>40)]++
		counts[6][byte(k>>48)]++
		counts[7][byte(k>>56)]++
	}
	if sorted {
		return keys
	}
	for digit := range counts {
		count := &counts[digit]
		shift := 8 * digit
		if count[byte(keys[0]>>shift)] == uint32(len(keys)) {
			continue
		}
		var at uint32
		for i, n := range count {
			count[i] = at
			at += n
		}
		for _, k := range keys {
			d := byte(k >> shift)
			scratch[count[d]] = k
			count[d]++
		}
		keys, scratch = scratch, keys
	}
	return keys
}
