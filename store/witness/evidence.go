package witness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// An evidence is the account of one process, in parts: single values in the first, and as many
// rows and lines in each of the others as a row of the store holds.
type evidence struct {
	Parts     int              `json:"parts,omitempty"`  // of the first: how many there are
	Sum       string           `json:"sum,omitempty"`    // of the others' parts; parts with another sum are of an earlier account
	Stores    []string         `json:"stores,omitempty"` // identities that it knows the store by
	Finder    bool             `json:"finder,omitempty"` // it has found the loss itself
	Manual    bool             `json:"manual,omitempty"`
	Decision  int64            `json:"decision,omitempty"` // number of the latest that it knows
	Joins     int64            `json:"joins,omitempty"`
	Compacted int64            `json:"compacted,omitempty"`
	Own       map[string]own   `json:"own,omitempty"`   // rows of its directory: up to which grant it knows all that were used
	Peers     map[string]peer  `json:"peers,omitempty"` // rows of others; a finder attests for those that have ended
	Seen      map[string]int64 `json:"seen,omitempty"`  // how many grants rows of others were observed to ask for, where that is more
	Lines     map[string]Pair  `json:"lines,omitempty"`
	Defs      map[string]def   `json:"defs,omitempty"`
}

// evidencePart is how many bytes one part of an evidence has about at most: half of a row's
// limit.
const evidencePart = driver.MaxValueBytes / 2

// parts splits an evidence, with the lines of a record, into rows.
func (e evidence) parts(r record) []evidence {
	all, sum, size := []evidence{e.open()}, sha256.New(), evidencePart
	// Rows and lines are taken in order, so that the same account has the same parts and sum.
	in := func(what ...any) *evidence { // the part that has room for that
		text, err := json.Marshal(what)
		if err != nil {
			panic(err) // strings, numbers and truth values
		}
		sum.Write(text)
		if size += len(text); size > evidencePart {
			all, size = append(all, evidence{}.open()), len(text)
		}
		return &all[len(all)-1]
	}
	for _, row := range slices.Sorted(maps.Keys(e.Own)) {
		in("own", row, e.Own[row]).Own[row] = e.Own[row]
	}
	for _, row := range slices.Sorted(maps.Keys(e.Peers)) {
		p := e.Peers[row]
		p.Count, p.Every = 0, 0 // nobody asks for them
		in("peer", row, p).Peers[row] = p
	}
	for _, row := range slices.Sorted(maps.Keys(e.Seen)) {
		if p, ok := e.Peers[row]; !ok || p.Grants < e.Seen[row] {
			in("seen", row, e.Seen[row]).Seen[row] = e.Seen[row]
		}
	}
	for _, line := range slices.Sorted(maps.Keys(r.Lines)) {
		defs := map[string]def{}
		if d, ok := r.Defs[line]; ok && d != (def{}) {
			defs[line] = d
		}
		if pool, _, ok := CutWorkerLine(line); ok {
			defs[poolDef(pool)] = r.Defs[poolDef(pool)]
		}
		part := in("line", line, r.Lines[line], defs)
		part.Lines[line] = r.Lines[line]
		maps.Copy(part.Defs, defs)
	}
	all[0].Parts = len(all)
	for i := range all {
		all[i].Sum = hex.EncodeToString(sum.Sum(nil)[:16])
	}
	return all
}

// open returns an evidence that says the same of itself, and nothing yet of rows and lines.
func (e evidence) open() evidence {
	e.Own, e.Peers, e.Seen = map[string]own{}, map[string]peer{}, map[string]int64{}
	e.Lines, e.Defs = map[string]Pair{}, map[string]def{}
	return e
}

// add takes over the rows and lines of a part.
func (e *evidence) add(part evidence) {
	maps.Copy(e.Own, part.Own)
	maps.Copy(e.Peers, part.Peers)
	maps.Copy(e.Seen, part.Seen)
	maps.Copy(e.Lines, part.Lines)
	maps.Copy(e.Defs, part.Defs)
}

// evidenceOf returns a witness's evidence, without its lines.
func evidenceOf(r record) evidence {
	e := evidence{
		Stores: append([]string{r.Store}, r.Former...), Joins: r.Joins, Compacted: r.Compacted, Own: r.Own, Peers: r.Peers,
		Finder: r.Latch != nil && r.Latch.State == Refusing,
	}
	if r.Decision != nil {
		e.Decision = r.Decision.Number
	}
	return e
}

// giveEvidence sees to it that this node's evidence stands in the store, under the word that
// was asked with. It looks each time: a copy of the store may hold the evidence that the node
// gave when it knew less.
func (g *Guarded) giveEvidence(ctx context.Context, s store, ask string) error {
	prefix := ask + "/" + g.run + "/"
	stands, err := s.Row(ctx, driver.TableEvidence, partName(prefix, 0))
	if err != nil {
		return unavailable(err)
	}
	g.mu.Lock()
	said, changed := g.said, g.changed
	seen := map[string]int64{}
	for row, other := range g.peers {
		seen[row] = other.beat.Grants
	}
	g.mu.Unlock()
	// The first part is written last: where it stands as it was given, the others do.
	if said.ask == ask && said.first == string(stands) {
		return nil
	}
	r := g.witness.snapshot()
	// The witness hears of beats with grants alone; this process knows its latest.
	r.Own = g.ownRows()
	e := evidenceOf(r)
	e.Seen, e.Manual = seen, g.opts.Manual
	parts := e.parts(r)
	first, err := json.Marshal(parts[0])
	if err != nil {
		return err
	}
	if err := publish(ctx, s, prefix, parts); err != nil {
		return err
	}
	g.mu.Lock()
	if g.changed == changed { // else it may know more by now
		g.said = spoken{ask, string(first)}
	}
	g.mu.Unlock()
	g.wake()
	return nil
}

// partName names the row of one part of an evidence.
func partName(prefix string, part int) string { return fmt.Sprintf("%s%09d", prefix, part) }

// publish writes the parts of an evidence, the first last.
func publish(ctx context.Context, s store, prefix string, parts []evidence) error {
	// The first part counts them: once it stands, the account is whole.
	for i, part := range slices.Backward(parts) {
		if err := putRow(ctx, s, driver.TableEvidence, partName(prefix, i), part); err != nil {
			return err
		}
	}
	return nil
}

// evidencePage is how many rows of evidence are read at a time: each may be as large as a row can be,
// and stores bound their answers.
const evidencePage = 100

// readEvidence returns the complete accounts whose rows begin with a prefix, by the processes that
// gave them.
func readEvidence(ctx context.Context, s store, prefix string) (map[string]evidence, error) {
	said, found := map[string]evidence{}, map[string]int{}
	for after := prefix; ; {
		page, err := s.ListRows(ctx, driver.TableEvidence, after, evidencePage)
		if err != nil {
			return nil, unavailable(err)
		}
		for _, r := range page {
			rest, ok := strings.CutPrefix(r.Name, prefix)
			// The rows of the next word, or of statements, follow.
			if !ok {
				return whole(said, found), nil
			}
			after = r.Name
			who, part, _ := strings.Cut(rest, "/")
			var e evidence
			if err := driver.DecodeRow(driver.TableEvidence, r.Name, r.Value, &e); err != nil {
				return nil, err
			}
			all, begun := said[who]
			switch {
			case !begun && part == partName("", 0):
				said[who] = e.open()
			case !begun || e.Sum != all.Sum: // it is of another account
				continue
			default:
				all.add(e)
			}
			found[who]++
		}
		if len(page) < evidencePage {
			return whole(said, found), nil
		}
	}
}

// whole leaves out accounts of which parts are missing.
func whole(said map[string]evidence, found map[string]int) map[string]evidence {
	maps.DeleteFunc(said, func(who string, e evidence) bool { return e.Parts == 0 || e.Parts != found[who] })
	return said
}

// An account is the sum of all evidence about a fence.
type account struct {
	heard    []string // processes that gave evidence
	stores   []string // that they know
	joins    int64
	decision int64  // number of the latest that anybody knows
	missing  []Node // processes that can know of grants, and for which nobody attests
	manual   bool
	lines    lines

	statements map[string]statement // of operators, by the row that they spoke for
}

// A need is a row that somebody knows, and how many grants it is known to have asked
// for at least.
type need struct {
	grants int64
	joined bool // it is known to have joined, and not only to have been asked for
	about  Node
}

// An inquiry is all that attests for processes: the evidence about a fence, and the store's own
// rows.
type inquiry struct {
	fence  *Fence
	said   map[string]evidence  // by processes
	files  map[string]evidence  // by witness files that operators gave
	stated map[string]statement // by operators, by the row that they spoke for

	beats   map[string][]byte
	present map[string]peer // the rows of the store
	joins   int64
	manual  bool
}

// inquire reads all that attests for processes.
func (g *Guarded) inquire(ctx context.Context, s store, f *Fence) (*inquiry, error) {
	h := &inquiry{fence: f}
	var err error
	if h.said, err = readEvidence(ctx, s, f.Ask+"/"); err != nil {
		return nil, err
	}
	if h.stated, h.files, err = readStatements(ctx, s, f.ID); err != nil {
		return nil, err
	}
	if h.beats, err = readRows(ctx, s, driver.TableBeats); err != nil {
		return nil, err
	}
	nodes, err := readNodes(ctx, s)
	if err != nil {
		return nil, err
	}
	if h.joins, _, err = readCounter(ctx, s, driver.RowJoins); err != nil {
		return nil, err
	}
	if h.present, err = peersOf(nodes, h.beats, 0); err != nil {
		return nil, err
	}
	for _, about := range nodes {
		h.manual = h.manual || about.Manual
	}
	return h, nil
}

// findMissing finds the rows for which nobody attests: no process that has it as its own, and no
// finder that observed its end, knows of as many grants as anybody has observed it ask for, and
// no operator has spoken for it.
func (h *inquiry) findMissing() *account {
	a := &account{joins: h.joins, statements: h.stated, manual: h.manual, lines: newLines()}
	needs := map[string]need{}
	know := func(row string, isJoin bool, grants int64, name, address string) {
		n := needs[row]
		n.grants, n.joined, n.about.Row = max(n.grants, grants), n.joined || isJoin, row
		if name != "" {
			n.about.Name, n.about.Address = name, address
		}
		needs[row] = n
		if isJoin {
			a.joins = max(a.joins, joinOf(row))
		}
	}
	covered := map[string]int64{} // up to which grant rows are attested
	attest := func(row string, grants int64) {
		if most, ok := covered[row]; !ok || grants > most {
			covered[row] = grants
		}
	}
	compacted := int64(0)
	for row, p := range h.present {
		know(row, true, p.Grants, p.Name, p.Address)
	}
	for row := range h.fence.Found {
		know(row, true, 0, "", "")
	}
	take := func(e evidence) {
		a.joins, a.decision = max(a.joins, e.Joins), max(a.decision, e.Decision)
		a.stores = append(a.stores, e.Stores...)
		a.learn(e.Lines, e.Defs)
		for row, o := range e.Own {
			// Where the answer to its registration was lost, its number may be that of a process which
			// nobody has surveyed: the row does not stand for that one, and tells of no join.
			know(row, o.Count > 0, o.Grants, "", "")
			// The original of a copied directory may have gone on under the row.
			if !o.Copied {
				attest(row, o.upTo())
			}
		}
		for row, p := range e.Peers {
			know(row, true, p.Grants, p.Name, p.Address)
			// A process that has not found the loss may have surveyed the store as it is now: there a row
			// may have ended that went on before.
			if e.Finder && p.How != "" {
				attest(row, p.Grants)
			}
		}
		for row, grants := range e.Seen {
			know(row, true, grants, "", "")
		}
		// For the same reason.
		if e.Finder {
			compacted = max(compacted, e.Compacted)
		}
	}
	for _, who := range slices.Sorted(maps.Keys(h.said)) {
		a.heard = append(a.heard, who)
		a.manual = a.manual || h.said[who].Manual
		take(h.said[who])
	}
	for _, e := range h.files {
		take(e)
	}
	numbers := map[int64]bool{}
	for row, n := range needs {
		numbers[joinOf(row)] = numbers[joinOf(row)] || n.joined
		grants, attested := covered[row]
		if _, ok := h.stated[row]; ok || joinOf(row) <= compacted || attested && grants >= n.grants {
			continue
		}
		n.about.Grants, n.about.State = n.grants, "missing"
		a.missing = append(a.missing, n.about)
	}
	// A process of which only the number is known: its row was lost with the store.
	for n := compacted + 1; n <= a.joins; n++ {
		row := rowName(n, "")
		if _, ok := h.stated[row]; !numbers[n] && !ok {
			a.missing = append(a.missing, Node{Row: row, State: "missing"})
		}
	}
	slices.SortFunc(a.missing, func(x, y Node) int { return strings.Compare(x.Row, y.Row) })
	return a
}

// learn takes over what one process knows of lines.
func (a *account) learn(pairs map[string]Pair, defs map[string]def) {
	kept := map[string]def{}
	for line, p := range pairs {
		was, d := owedLine{a.lines.pairs[line], a.lines.defs[line]}, defs[line]
		if _, ok := a.lines.pairs[line]; ok && was.Def.isAnother(d) {
			kept[line] = was.surer(owedLine{p, d})
		}
	}
	a.lines.add(pairs, defs)
	maps.Copy(a.lines.defs, kept)
}

// raiseAtOnce is how many lines are raised at a time.
const raiseAtOnce = 16

// raise sees to it that every line of the store is above the account, and returns those
// that were not.
func (g *Guarded) raise(ctx context.Context, s store, a *account) ([]Raised, error) {
	healer, err := healing(s)
	if err != nil {
		return nil, err
	}
	if err := a.learnOwed(ctx, s); err != nil {
		return nil, err
	}
	have, err := readLines(ctx, s, a.lines)
	if err != nil {
		return nil, unavailable(err)
	}
	if err := a.owe(ctx, s, have); err != nil {
		return nil, err
	}
	wants := a.lacking(have)
	var (
		mu     sync.Mutex
		raised []Raised
		errs   []error
		wg     sync.WaitGroup
		slots  = make(chan struct{}, raiseAtOnce)
	)
	for _, line := range slices.Sorted(maps.Keys(wants)) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := healLine(ctx, healer, line, wants[line], a.lines.defs, have.defs)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", line, err))
				return
			}
			raised = append(raised, raisedOf(line, have.pairs[line].Mark, wants[line].Mark))
		})
	}
	wg.Wait()
	slices.SortFunc(raised, func(x, y Raised) int { return strings.Compare(x.String(), y.String()) })
	return raised, unavailable(errors.Join(errs...))
}

// wants returns the pairs of the lines that are to be raised.
func (a *account) wants(have lines) map[string]Pair {
	all := newLines()
	all.add(a.lines.pairs, a.lines.defs)
	all.add(have.pairs, have.defsFor(record{Defs: all.defs}))
	wants := map[string]Pair{}
	for line, p := range all.pairs {
		// An operator's floor holds for lines that only the store or only the evidence has, too.
		p.Mark = max(p.Mark, a.stated(line, all.defs))
		if q, ok := have.pairs[line]; !ok || q.Token < p.Token || q.Mark < p.Mark {
			wants[line] = p
		}
	}
	return wants
}

// stated returns up to where operators said that a line was used; 0: they did not.
func (a *account) stated(line string, defs map[string]def) int64 {
	most := int64(0)
	for _, st := range a.statements {
		most = max(most, st.assumed(line, defs))
	}
	return most
}

// healing returns the part of a store that can be healed.
func healing(s store) (driver.Healing, error) {
	h, ok := s.(driver.Healing)
	if !ok {
		return nil, fmt.Errorf("%w: %T cannot be healed", hapax.ErrNotSupported, s)
	}
	return h, nil
}

// healLine raises one line.
func healLine(ctx context.Context, s driver.Healing, line string, p Pair, defs ...map[string]def) error {
	find := func(name string) (d def, ok bool) {
		for _, some := range defs {
			if d, ok = some[name]; ok {
				return d, true
			}
		}
		return d, false
	}
	if name, ok := CutTagLine(line); ok {
		d, _ := find(line)
		if d.Kind == hapax.KindSnowflake {
			// It has no numbers of its own: they come from its pool's workers.
			p = Pair{Token: p.Token}
		}
		_, err := s.HealTag(ctx, d.tag(name, p))
		return err
	}
	pool, id, ok := CutWorkerLine(line)
	if !ok {
		return nil
	}
	d, ok := find(poolDef(pool))
	if !ok {
		return fmt.Errorf("%w: %w", hapax.ErrStoreCorrupt, errNoLine)
	}
	_, err := s.HealWorker(ctx, d.Layout, driver.Worker{Pool: pool, ID: id, Mark: p.Mark, Token: p.Token})
	return err
}

// forget removes the evidence, which is of no more use.
func (g *Guarded) forget(ctx context.Context, s store) error {
	for after := ""; ; {
		page, err := s.ListRows(ctx, driver.TableEvidence, after, evidencePage)
		for _, r := range page {
			if after = r.Name; err == nil {
				_, err = s.SwapRow(ctx, driver.TableEvidence, r.Name, r.Value, nil)
			}
		}
		if err != nil || len(page) < evidencePage {
			return unavailable(err)
		}
	}
}
