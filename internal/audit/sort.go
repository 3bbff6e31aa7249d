package audit

import (
	"math/bits"
	"slices"
)

const (
	smallSort = 1 << 6  // up to how many keys a comparing sort is quicker
	cacheSort = 1 << 17 // up to how many keys, with as much scratch space, stay in a core's cache
	digitBits = 10
	groupSort = 16 // how far a key is moved to its place in a group
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
	digits := (enough + digitBits - 1) / digitBits
	low := max(width-digits*digitBits, 0)
	keys, scratch = sortDigits(keys, scratch, low, digits)
	if low > 0 {
		sortGroups(keys, scratch, low)
	}
	return keys
}

// dealOut sorts keys that differ in the lowest bits alone, as many as width.
func dealOut(keys, scratch []uint64, width int) []uint64 {
	digit := min(width, 8, bits.Len(uint(len(keys)/cacheSort))+2)
	shift, mask := width-digit, byte(1<<digit-1)
	var ends [256]int
	for _, k := range keys {
		ends[byte(k>>(shift&63))&mask]++
	}
	starts(ends[:])
	for _, k := range keys {
		at := &ends[byte(k>>(shift&63))&mask]
		scratch[*at] = k
		*at++
	}
	from := 0
	for _, end := range ends[:1<<digit] {
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

// sortDigits sorts by digits from a bit upwards, and returns where the keys are then
// and where they are not.
func sortDigits(keys, scratch []uint64, from, digits int) (sorted, free []uint64) {
	const mask = 1<<digitBits - 1
	for shift := from; shift < from+digits*digitBits; shift += digitBits {
		var at [1 << digitBits]int
		for _, k := range keys {
			at[k>>(shift&63)&mask]++
		}
		starts(at[:])
		for _, k := range keys {
			to := &at[k>>(shift&63)&mask]
			scratch[*to] = k
			*to++
		}
		keys, scratch = scratch, keys
	}
	return keys, scratch
}

// sortGroups sorts keys that are in order but for their lowest bits.
func sortGroups(keys, scratch []uint64, low int) {
	for i := 1; i < len(keys); i++ {
		k := keys[i]
		if keys[i-1] <= k {
			continue
		}
		to := i
		for ; to > max(i-groupSort, 0) && keys[to-1] > k; to-- {
			keys[to] = keys[to-1]
		}
		keys[to] = k
		if i-to < groupSort {
			continue
		}
		from, group := to, k>>low
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
		i--
	}
}

// starts turns counts into where each begins.
func starts(counts []int) {
	sum := 0
	for i, n := range counts {
		counts[i] = sum
		sum += n
	}
}
