//go:build !race

package hapax

// invariants has the conditions of the package comment checked while running: in
// builds with the race detector.
const invariants = false
