package hapax

import "fmt"

// violatedf reports a broken condition. It is called only in builds with the race
// detector.
func violatedf(condition int, format string, args ...any) {
	panic(fmt.Sprintf("hapax: condition %d is broken: %s", condition, fmt.Sprintf(format, args...)))
}

// check panics unless n cursors from c on lie within the grant.
func (r *segment) check(c, n int64) {
	if c < r.lo || c+n > r.hi {
		violatedf(4, "%d numbers from cursor %d are outside [%d, %d)", n, c, r.lo, r.hi)
	}
}

// check panics unless n cursors from c on lie within the stretch. One that was
// dropped ends at 0.
func (r *stretch) check(c, n int64) {
	if hi := r.hi.Load() << r.bits; c < r.first || hi != 0 && c+n > hi {
		violatedf(4, "%d numbers from cursor %d are outside [%d, %d)", n, c, r.first, hi)
	}
}
