package hapax

import "math/rand/v2"

// randomN returns a random number in [0, n). Simulations replace it, so that a
// run can be repeated.
var randomN = rand.Int64N
