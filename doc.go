// Package hapax issues unique 64-bit numbers: order numbers, user IDs, event
// IDs.
//
// Everything is a grant: a half-open stretch of a line of numbers that a store
// hands out, durably and to one process only, before any of it is used. Inside
// a grant issuing is one atomic add.
package hapax
