// Command codes compares hapax codes with Sqids, Hashids and TypeID: what a
// mistyped code decodes to, how many texts a number has, and how fast they are.
package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/bench/internal/host"
	"github.com/hapax-id/hapax/codec"
	"github.com/speps/go-hashids/v2"
	"github.com/sqids/sqids-go"
	"go.jetify.com/typeid"
)

// A contender writes numbers as texts and reads them back.
type contender struct {
	name     string
	alphabet string // of the characters that a typist may hit
	skip     int    // leading characters that are the same in all texts
	encode   func(n uint64) string
	decode   func(text string) (uint64, error)
	// again reads a text and writes what was read.
	again func(text string) (string, error)
}

// through reads a number and writes it.
func (c contender) through(text string) (string, error) {
	n, err := c.decode(text)
	if err != nil {
		return "", err
	}
	return c.encode(n), nil
}

func main() {
	quick := flag.Bool("quick", false, "a short run, to see that everything works")
	flag.Parse()
	samples, rounds, each := 2000, 5, 200*time.Millisecond
	if *quick {
		samples, rounds, each = 50, 1, 5*time.Millisecond
	}
	all, err := contenders()
	if err == nil {
		fmt.Fprintf(os.Stdout, "%s, %d cores in use, %s/%s, %s; medians of %d rounds of %v; load average %s\n\n", host.Processor(),
			runtime.GOMAXPROCS(0), runtime.GOOS, runtime.GOARCH, runtime.Version(), rounds, each, host.Load())
		err = report(all, samples, rounds, each)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "codes:", err)
		os.Exit(1)
	}
}

const (
	crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	prefix    = "coupon" // of TypeIDs
)

func contenders() ([]contender, error) {
	opts := codec.Options{Tag: "coupons", Keys: map[string][]byte{"k1": []byte("0123456789abcdef0123456789abcdef")}}
	var all []contender
	for _, h := range []struct {
		spec, alphabet string
		skip           int
	}{
		{"{id:8:crockford32:multiply}", crockford, 0},
		{"{id:8:crockford32:feistel}", crockford, 0},
		{"{id:8:crockford32:feistel}{check}", crockford, 0},
		{"{type:" + prefix + "}{uuid:base32}", strings.ToLower(crockford), len(prefix + "_")},
	} {
		c, err := codec.Parse(h.spec, opts)
		if err != nil {
			return nil, err
		}
		all = append(all, contender{
			name: "hapax `" + h.spec + "`", alphabet: h.alphabet, skip: h.skip,
			encode: func(n uint64) string {
				text, err := c.Append(make([]byte, 0, 40), hapax.ID(n))
				if err != nil {
					panic(err)
				}
				return string(text)
			},
			decode: func(text string) (uint64, error) {
				id, err := c.Decode(text)
				return uint64(id), err
			},
		})
	}
	for _, add := range []func() (contender, error){sqid, hashid, func() (contender, error) { return typeID(all[3]) }} {
		c, err := add()
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	for i := range all {
		if all[i].again == nil {
			all[i].again = all[i].through
		}
	}
	return all, nil
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

var errCount = errors.New("not one number")

func sqid() (contender, error) {
	s, err := sqids.New(sqids.Options{MinLength: 8})
	return contender{
		name: "Sqids v0.4.1, 8 characters or more", alphabet: letters,
		encode: func(n uint64) string {
			text, err := s.Encode([]uint64{n})
			if err != nil {
				panic(err)
			}
			return text
		},
		decode: func(text string) (uint64, error) {
			numbers := s.Decode(text)
			if len(numbers) != 1 {
				return 0, errCount
			}
			return numbers[0], nil
		},
	}, err
}

func hashid() (contender, error) {
	h, err := hashids.NewWithData(&hashids.HashIDData{Alphabet: letters, MinLength: 8, Salt: "0123456789abcdef"})
	return contender{
		name: "Hashids v2.0.1, 8 characters or more", alphabet: letters,
		encode: func(n uint64) string {
			text, err := h.EncodeInt64([]int64{int64(n)})
			if err != nil {
				panic(err)
			}
			return text
		},
		decode: func(text string) (uint64, error) {
			numbers, err := h.DecodeInt64WithError(text)
			if err == nil && len(numbers) != 1 {
				err = errCount
			}
			if err != nil {
				return 0, err
			}
			return uint64(numbers[0]), nil
		},
	}, err
}

// typeID writes a number into the last bits of a UUID; TypeIDs have no numbers.
func typeID(ours contender) (contender, error) {
	// What hapax writes in this form, TypeID's library reads.
	if _, err := typeid.FromString(ours.encode(428)); err != nil {
		return contender{}, err
	}
	return contender{
		name: "TypeID v1.3.0, the number as a UUID", alphabet: strings.ToLower(crockford), skip: len(prefix + "_"),
		encode: func(n uint64) string {
			var uuid [16]byte
			binary.BigEndian.PutUint64(uuid[8:], n)
			id, err := typeid.FromUUIDBytesWithPrefix(prefix, uuid[:])
			if err != nil {
				panic(err)
			}
			return id.String()
		},
		decode: func(text string) (uint64, error) {
			id, err := typeid.FromString(text)
			if err != nil {
				return 0, err
			}
			return binary.BigEndian.Uint64(id.UUIDBytes()[8:]), nil
		},
		again: func(text string) (string, error) {
			id, err := typeid.FromString(text)
			return id.String(), err
		},
	}, nil
}

// A result is what report shows of a contender.
type result struct {
	changed, swaps float64 // shares of typos that pass
	aliases        float64 // share of readable random texts that are written otherwise
}

func report(all []contender, samples, rounds int, each time.Duration) error {
	results := make([]result, len(all))
	for i, c := range all {
		r, err := typos(c, samples)
		if err != nil {
			return err
		}
		results[i] = r
	}
	// They take turns, because a shared machine's speed changes.
	encodes, decodes := make([][]time.Duration, len(all)), make([][]time.Duration, len(all))
	for range rounds {
		for i, c := range all {
			text, n := c.encode(428), uint64(0)
			encodes[i] = append(encodes[i], measure(each, func() {
				n = (n + 1) % 1_000_000
				c.encode(n)
			}))
			decodes[i] = append(decodes[i], measure(each, func() {
				if _, err := c.decode(text); err != nil {
					panic(err)
				}
			}))
		}
	}
	fmt.Fprintln(os.Stdout, "| | 428 is | one character changed passes | two neighbours swapped pass | random texts that are read, but written otherwise | CPU ns to encode | CPU ns to decode |")
	fmt.Fprintln(os.Stdout, "|---|---|--:|--:|--:|--:|--:|")
	for i, c := range all {
		r := results[i]
		slices.Sort(encodes[i])
		slices.Sort(decodes[i])
		fmt.Fprintf(os.Stdout, "| %s | `%s` | %s | %s | %s | %d | %d |\n", c.name, c.encode(428), percent(r.changed), percent(r.swaps), percent(r.aliases),
			encodes[i][rounds/2].Nanoseconds(), decodes[i][rounds/2].Nanoseconds())
	}
	return nil
}

func percent(share float64) string {
	switch {
	case share == 0:
		return "none"
	case share < 0.001:
		return "< 0.1 %"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

// typos changes the codes of random numbers below a million.
func typos(c contender, samples int) (result, error) {
	random := rand.New(rand.NewPCG(1, 2))
	var changed, passed, swapped, passedSwap, read, alias int
	for range samples {
		n := random.Uint64N(1_000_000)
		text := c.encode(n)
		if got, err := c.decode(text); err != nil || got != n {
			return result{}, fmt.Errorf("%s: %d is %s, which is %d, %w", c.name, n, text, got, err)
		}
		wrong := []byte(text)
		for i := c.skip; i < len(wrong); i++ {
			was := wrong[i]
			for _, char := range []byte(c.alphabet) {
				if wrong[i] = char; char == was {
					continue
				}
				changed++
				if _, err := c.decode(string(wrong)); err == nil {
					passed++
				}
			}
			wrong[i] = was
			if i > c.skip && wrong[i-1] != was {
				wrong[i-1], wrong[i] = was, wrong[i-1]
				swapped++
				if _, err := c.decode(string(wrong)); err == nil {
					passedSwap++
				}
				wrong[i-1], wrong[i] = wrong[i], was
			}
		}
		for range 100 {
			for i := c.skip; i < len(wrong); i++ {
				wrong[i] = c.alphabet[random.IntN(len(c.alphabet))]
			}
			again, err := c.again(string(wrong))
			if err != nil {
				continue
			}
			read++
			if again != string(wrong) {
				alias++
			}
		}
	}
	return result{changed: share(passed, changed), swaps: share(passedSwap, swapped), aliases: share(alias, read)}, nil
}

func share(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// measure returns the processor time of one call, which a machine that is shared
// changes less than elapsed time.
func measure(each time.Duration, call func()) time.Duration {
	const batch = 100
	calls := 0
	start, before := time.Now(), processor()
	for more := true; more; more = time.Since(start) < each { // once in any case: the process may have to wait
		for range batch {
			call()
		}
		calls += batch
	}
	return (processor() - before) / time.Duration(calls)
}

// processor returns the processor time that the process has used.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
