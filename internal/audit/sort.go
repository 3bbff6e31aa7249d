package audit

import (
	"math/bits"
	"slices"
)

const (
	smallSort = 1 << 6  // up to how many keys a comparing sort is quicker
	cacheSort = 1 << 17 // up to how many keys, with as much scratch space, stay in a core's cache
	maxDigit  = 10      // bits
)

// sortKeys sorts keys and returns the one of the two that holds them then. The
// scratch space is as long as the keys.
//
// Only as many of the bits in which keys differ are looked at as are needed to tell
// most of them apart, the highest ones. Many keys are dealt out by some of these
// until what goes together fits the cache; that is sorted by digits, the lowest
// first. What is still not told apart is sorted by itself.
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
	if sorted {
		return keys
	}
	width := bits.Len64(differ)
	if len(keys) > cacheSort {
		return dealOut(keys, scratch, width)
	}
	enough := min(width, bits.Len(uint(len(keys)))+1)
	return sortGroups(sortDigits(keys, scratch, width-enough, width), scratch, keys, width-enough)
}

// dealOut sorts keys that differ in the lowest bits alone, as many as width.
func dealOut(keys, scratch []uint64, width int) []uint64 {
	digit := min(width, 8, bits.Len(uint(len(keys)/cacheSort))+2)
	shift := width - digit
	mask := uint64(1)<<digit - 1
	var ends [256]int
	for _, k := range keys {
		ends[k>>shift&mask]++
	}
	starts(ends[:])
	for _, k := range keys {
		at := &ends[k>>shift&mask]
		scratch[*at] = k
		*at++
	}
	from := 0
	for _, end := range ends[:mask+1] {
		part := scratch[from:end]
		if len(part) > 0 && shift > 0 {
			if result := sortKeys(part, keys[from:end]); &result[0] != &part[0] {
				copy(part, result)
			}
		}
		from = end
	}
	return scratch
}

// sortDigits sorts by the bits from one up to another.
func sortDigits(keys, scratch []uint64, from, upTo int) []uint64 {
	passes := (upTo - from + maxDigit - 1) / maxDigit
	digit := (upTo - from + passes - 1) / passes
	mask := uint64(1)<<digit - 1
	for shift := from; shift < upTo; shift += digit {
		var at [1 << maxDigit]int
		for _, k := range keys {
			at[k>>shift&mask]++
		}
		starts(at[:mask+1])
		for _, k := range keys {
			to := &at[k>>shift&mask]
			scratch[*to] = k
			*to++
		}
		keys, scratch = scratch, keys
	}
	return keys
}

// sortGroups sorts keys that are in order but for their lowest bits. Of a and b it
// takes the one that is not keys for its scratch space.
func sortGroups(keys, a, b []uint64, low int) []uint64 {
	if low == 0 {
		return keys
	}
	scratch := a
	if &a[0] == &keys[0] {
		scratch = b
	}
	for i := 1; i < len(keys); i++ {
		if keys[i-1] <= keys[i] {
			continue
		}
		from, group := i-1, keys[i]>>low
		for from > 0 && keys[from-1]>>low == group {
			from--
		}
		for i++; i < len(keys) && keys[i]>>low == group; {
			i++
		}
		part := keys[from:i]
		if result := sortKeys(part, scratch[from:i]); &result[0] != &part[0] {
			copy(part, result)
		}
	}
	return keys
}

// starts turns counts into where each begins.
func starts(counts []int) {
	sum := 0
	for i, n := range counts {
		counts[i] = sum
		sum += n
	}
}
