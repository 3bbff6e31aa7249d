//go:build race

package hapax

// invariants has the conditions of the package comment checked while running.
const invariants = true
