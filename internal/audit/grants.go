package audit

import (
	"bufio"
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/journal"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/store/witness"
)

// What a file of grants may hold.
const (
	maxGrants     = 1 << 24
	maxGrantBytes = 4 << 10 // a line
)

// Grants are what was granted, by line: witness.TagLine for the numbers of a tag,
// witness.WorkerLine for the ticks of a pool's worker.
type Grants struct {
	nodes []string
	lines map[string][]stretch
}

// A stretch is what a node was granted: from lo up to, but not including, hi.
type stretch struct {
	lo, hi int64
	at     int64 // when, in Unix nanoseconds
	node   int32 // in Grants.nodes
}

// ReadGrants reads files of grants, packed with gzip or not. Each line is
//
//	line \t lo \t hi \t node \t time \t what
//
// where the line is "tag/NAME", with lo and hi as numbers, or "worker/POOL/ID",
// with lo and hi as ticks of the pool's layout; hi is not included, and the time
// is RFC 3339. Where what is "back", the node has given back what it was granted
// from lo on, in a line before; "offered", that it may have, is left aside, and
// anything else, or nothing, means a grant. Further fields, empty lines, and lines
// that begin with # are left aside. Where grants of a line overlap the later one
// counts.
//
// A directory stands for the ledger in it: see package ledger. Records of it that
// cannot be read are counted.
func ReadGrants(ctx context.Context, names ...string) (g *Grants, damaged int, err error) {
	r := newGrantReader()
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			n, err := r.ledger(ctx, name)
			damaged += n
			if err != nil {
				return nil, damaged, err
			}
			continue
		}
		if err := r.file(name); err != nil {
			return nil, damaged, err
		}
	}
	return r.grants, damaged, nil
}

// A grantReader puts grants together.
type grantReader struct {
	grants *Grants
	nodes  map[string]int32
	count  int
}

func newGrantReader() *grantReader {
	return &grantReader{grants: &Grants{lines: map[string][]stretch{}}, nodes: map[string]int32{}}
}

func (r *grantReader) file(name string) error {
	src, done, err := open(name, nil, new(atomic.Int64))
	if err != nil {
		return err
	}
	defer done()
	return r.read(src, name)
}

func (r *grantReader) read(src io.Reader, name string) error {
	lines := bufio.NewScanner(src)
	lines.Buffer(nil, maxGrantBytes)
	for n := 1; lines.Scan(); n++ {
		if err := r.add(lines.Text(), name, n); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("a line is longer than %d bytes", maxGrantBytes)
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// ledger reads the ledger in a directory, or in a node's data directory.
func (r *grantReader) ledger(ctx context.Context, dir string) (damaged int, err error) {
	if below := filepath.Join(dir, ledger.Dir); isDir(below) {
		dir = below
	}
	files, err := journal.Files(dir, ledger.Prefix)
	if err != nil {
		return 0, err
	}
	if len(files) == 0 {
		return 0, fmt.Errorf("%s holds no ledger of a node: %w", dir, fs.ErrNotExist)
	}
	n := 0
	return journal.Read(ctx, dir, ledger.Prefix, func(record []byte) error {
		n++
		return r.add(string(record), dir, n)
	})
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// add takes the nth line of the named file.
func (r *grantReader) add(text, name string, n int) error {
	if text == "" || text[0] == '#' {
		return nil
	}
	line, s, node, what, err := parseGrant(text, name, n)
	if err != nil {
		return err
	}
	known, ok := r.nodes[node]
	if !ok {
		known = int32(len(r.grants.nodes))
		// Without the rest of its line, which would stay in memory with it.
		node = strings.Clone(node)
		r.nodes[node] = known
		r.grants.nodes = append(r.grants.nodes, node)
	}
	s.node = known
	all, ok := r.grants.lines[line]
	switch {
	case what == ledger.Back:
		if kept := giveBack(all, s); ok {
			r.count -= len(all) - len(kept)
			r.grants.lines[line] = kept
		}
		return nil
	case what == ledger.Offered:
		return nil
	case !ok:
		line = strings.Clone(line)
	}
	if r.count++; r.count > maxGrants {
		return fmt.Errorf("%s: more than %d grants; leave out the lines that the dump is not of", name, maxGrants)
	}
	r.grants.lines[line] = append(all, s)
	return nil
}

// giveBack takes what a node has given back from its grants, of which the latest
// are the last.
func giveBack(all []stretch, back stretch) []stretch {
	for i := len(all) - 1; i >= 0; i-- {
		switch s := &all[i]; {
		case s.node != back.node:
		case s.hi <= back.lo: // and so are those before it
			return all
		case s.lo >= back.lo:
			all = slices.Delete(all, i, i+1)
		default:
			s.hi = back.lo
			return all
		}
	}
	return all
}

// parseGrant reads the nth line of the named file.
func parseGrant(text, name string, n int) (line string, s stretch, node, what string, err error) {
	bad := func(field, value, allowed string) error {
		return &hapax.ValueError{Field: fmt.Sprintf("%s:%d: %s", name, n, field), Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
	}
	fields := strings.Split(text, "\t")
	if len(fields) < 5 {
		return "", s, "", "", bad("grant", text, "line, lo, hi, node and time, separated by tabs")
	}
	line, node = fields[0], fields[3]
	if _, _, ok := splitLine(line); !ok {
		return "", s, "", "", bad("line", line, "tag/NAME or worker/POOL/ID")
	}
	lo, err := hapax.ParseID(fields[1])
	if err != nil {
		return "", s, "", "", bad("lo", fields[1], "an integer of 64 bits")
	}
	hi, err := hapax.ParseID(fields[2])
	if err != nil || hi <= lo {
		return "", s, "", "", bad("hi", fields[2], "an integer of 64 bits above lo, which is "+fields[1])
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSuffix(fields[4], "\r"))
	if err != nil {
		return "", s, "", "", bad("time", fields[4], "RFC 3339, such as 2026-01-02T03:04:05Z")
	}
	if len(fields) > 5 {
		what = strings.TrimSuffix(fields[5], "\r")
	}
	return line, stretch{lo: int64(lo), hi: int64(hi), at: at.UnixNano()}, node, what, nil
}

// splitLine returns the tag, or the pool and its worker, that a line is of; the
// worker is -1 for a tag.
func splitLine(name string) (of string, worker int64, ok bool) {
	system, line := ledger.CutSystem(name)
	if of, worker, ok = splitOwn(line); ok && system != "" {
		of = system + "/" + of
	}
	return of, worker, ok
}

// splitOwn is splitLine for a line that is of no foreign system.
func splitOwn(line string) (name string, worker int64, ok bool) {
	if tag, found := strings.CutPrefix(line, witness.TagLine("")); found && tag != "" {
		return tag, -1, true
	}
	rest, found := strings.CutPrefix(line, "worker/")
	cut := strings.LastIndexByte(rest, '/')
	if !found || cut < 1 {
		return "", 0, false
	}
	worker, err := strconv.ParseInt(rest[cut+1:], 10, 64)
	return rest[:cut], worker, err == nil && worker >= 0 && line == witness.WorkerLine(rest[:cut], worker)
}

// granted is what the numbers of one dump are held against: stretches of numbers
// under the worker -1, or of each worker's ticks. They are disjoint and ascend.
type granted struct {
	nodes   []string
	workers map[int64][]stretch
}

// of selects the grants of a tag, or of a pool where ticks are what numbers hold.
// Without a name there has to be just one.
func (g *Grants) of(name string, ticks bool) (*granted, error) {
	what := "tag"
	if ticks {
		what = "pool"
	}
	found := &granted{nodes: g.nodes, workers: map[int64][]stretch{}}
	names := map[string]bool{}
	for line, stretches := range g.lines {
		of, worker, _ := splitLine(line)
		if (worker >= 0) != ticks {
			continue
		}
		names[of] = true
		if name == "" || of == name {
			found.workers[worker] = stretches
		}
	}
	if name == "" && len(names) == 1 || names[name] {
		for worker, stretches := range found.workers {
			found.workers[worker] = disjoint(stretches)
		}
		return found, nil
	}
	listed := slices.Sorted(maps.Keys(names))
	allowed := fmt.Sprintf("one of the %ss that there are grants of: %s", what, strings.Join(listed[:min(len(listed), 10)], ", "))
	if len(listed) == 0 {
		allowed = fmt.Sprintf("grants of a %s, of which the file has none; with --layout numbers are held against the grants of a pool, without it against those of a tag", what)
	}
	return nil, &hapax.ValueError{Field: what, Value: name, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// latest is a heap of stretches, the one that was granted last on top.
type latest []stretch

func (h latest) Len() int           { return len(h) }
func (h latest) Less(i, j int) bool { return h[i].at > h[j].at }
func (h latest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *latest) Push(s any)        { *h = append(*h, s.(stretch)) }
func (h *latest) Pop() any {
	last := len(*h) - 1
	s := (*h)[last]
	*h = (*h)[:last]
	return s
}

// disjoint returns ascending stretches that cover the same, each part given to
// the latest grant of it.
func disjoint(all []stretch) []stretch {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b stretch) int { return cmp.Compare(a.lo, b.lo) })
	var flat []stretch
	var open latest
	for i := 0; i < len(all) || len(open) > 0; {
		if len(open) == 0 {
			heap.Push(&open, all[i])
			i++
			continue
		}
		// The top holds up to its end, or until a later grant begins.
		top := open[0]
		switch {
		case i < len(all) && all[i].lo < top.hi:
			next := all[i]
			i++
			if next.at > top.at && next.lo > top.lo {
				flat = appendStretch(flat, top, next.lo)
			}
			heap.Push(&open, next)
		default:
			flat = appendStretch(flat, top, top.hi)
			heap.Pop(&open)
		}
		// What ends before the point that is reached is over.
		for len(flat) > 0 && len(open) > 0 && open[0].lo < flat[len(flat)-1].hi {
			if done := flat[len(flat)-1].hi; open[0].hi <= done {
				heap.Pop(&open)
			} else {
				open[0].lo = done // its rank does not depend on that
				break
			}
		}
	}
	return flat
}

// appendStretch adds s up to hi.
func appendStretch(flat []stretch, s stretch, hi int64) []stretch {
	s.hi = hi
	if last := len(flat) - 1; last >= 0 && flat[last].hi == s.lo && flat[last].node == s.node {
		flat[last].hi = hi
		return flat
	}
	return append(flat, s)
}
