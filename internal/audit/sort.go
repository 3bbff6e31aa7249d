package audit

import (
	"math/bits"
	"slices"
)

const (
	smallSort = 1 << 8  // up to how many keys a comparing sort is quicker
	cacheSort = 1 << 15 // up to how many keys, with as much scratch space, stay in a core's cache
)

// sortKeys sorts keys and returns the one of the two that holds them then. The
// scratch space is as long as the keys.
//
// Many keys are dealt out by the highest 8 bits in which they differ, until what
// goes together fits the cache; that is sorted by digits of 8 bits, the lowest
// first.
func sortKeys(keys, scratch []uint64) []uint64 {
	if len(keys) <= smallSort {
		slices.Sort(keys)
		return keys
	}
	sorted, last, differ := true, keys[0], uint64(0)
	for _, k := range keys {
		sorted = sorted && last <= k
		differ |= last ^ k
		last = k
	}
	width := bits.Len64(differ)
	switch {
	case sorted:
		return keys
	case len(keys) <= cacheSort || width <= 8:
		return sortDigits(keys, scratch, (width+7)/8)
	}
	shift := width - 8
	var ends [256]int
	for _, k := range keys {
		ends[byte(k>>shift)]++
	}
	starts(&ends)
	for _, k := range keys {
		at := &ends[byte(k>>shift)]
		scratch[*at] = k
		*at++
	}
	from := 0
	for _, end := range ends {
		part := scratch[from:end]
		if len(part) > 0 {
			if result := sortKeys(part, keys[from:end]); &result[0] != &part[0] {
				copy(part, result)
			}
		}
		from = end
	}
	return scratch
}

// sortDigits sorts by the lowest digits.
func sortDigits(keys, scratch []uint64, digits int) []uint64 {
	for shift := 0; shift < 8*digits; shift += 8 {
		var at [256]int
		for _, k := range keys {
			at[byte(k>>shift)]++
		}
		if at[byte(keys[0]>>shift)] == len(keys) {
			continue
		}
		starts(&at)
		for _, k := range keys {
			to := &at[byte(k>>shift)]
			scratch[*to] = k
			*to++
		}
		keys, scratch = scratch, keys
	}
	return keys
}

// starts turns counts into where each begins.
func starts(counts *[256]int) {
	sum := 0
	for i, n := range counts {
		counts[i] = sum
		sum += n
	}
}
