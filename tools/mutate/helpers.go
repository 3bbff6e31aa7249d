package main

// helperFile stands beside the package's files, and its prefix keeps names apart.
const helperFile = "mutants_generated.go"

// helpers are what the mutants call: which mutant is on comes from the environment, and
// which were reached goes into a file that is shared memory, so that a test that crashes
// has recorded as much. Where a mutant changes nothing it counts as not reached: where both sides of a
// comparison differ, < and <= say the same, and a field that is zero anyway loses nothing. Arguments are the package's name and how many mutants there are.
const helpers = `package %s

import (
	"cmp"
	"os"
	"reflect"
	"strconv"
	"syscall"
)

var mutantNow, mutantSeen = mutantStart(%d)

func mutantStart(n int) (now int, seen []byte) {
	now, _ = strconv.Atoi(os.Getenv("MUTANT"))
	if path := os.Getenv("MUTANTS_REACHED"); path != "" {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			panic(err)
		}
		seen, err = syscall.Mmap(int(f.Fd()), 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		if err != nil {
			panic(err)
		}
	}
	return now, seen
}

func mutantOn(id int) bool {
	if mutantSeen != nil {
		mutantSeen[id] = 1
	}
	return mutantNow == id
}

func mutantLess[T cmp.Ordered](id int, x, y T) bool { return x < y || x == y && mutantOn(id) }

func mutantAtMost[T cmp.Ordered](id int, x, y T) bool { return x < y || x == y && !mutantOn(id) }

func mutantMore[T cmp.Ordered](id int, x, y T) bool { return x > y || x == y && mutantOn(id) }

func mutantAtLeast[T cmp.Ordered](id int, x, y T) bool { return x > y || x == y && !mutantOn(id) }

func mutantMin[T cmp.Ordered](id int, x T, more ...T) T {
	for _, y := range more {
		if x != y && (x > y) != mutantOn(id) {
			x = y
		}
	}
	return x
}

func mutantMax[T cmp.Ordered](id int, x T, more ...T) T {
	for _, y := range more {
		if x != y && (x < y) != mutantOn(id) {
			x = y
		}
	}
	return x
}

func mutantZero[T any](id int, v T) T {
	if mutantSeen == nil && mutantNow != id || reflect.ValueOf(&v).Elem().IsZero() || !mutantOn(id) {
		return v
	}
	var zero T
	return zero
}

func mutantField[T any](id int, p *T) *T {
	if mutantOn(id) {
		return new(T)
	}
	return p
}
`
