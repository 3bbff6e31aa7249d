package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

// Facts are the store's account of a line. If Known is false it was not asked, or did
// not answer.
type Facts struct {
	Known   bool
	Exists  bool
	Mark    int64
	Worker  driver.Worker // of a worker
	Restart bool          // the tag's numbers restart, on lines of their own

	Tag      hapax.Tag // of a tag
	Strategy string    // the name of its strategy

	// Maker names, in words, the strategy or code that turns the tag's granted numbers into
	// others. Grants and mark say nothing about those.
	Maker string

	// Shared names the strategy if it has all nodes issue one grant together.
	Shared string
}

// A Candidate is a line that a number may be on.
type Candidate struct {
	Name     string
	Position int64
	Layout   hapax.Layout // of a worker's line
	Facts    Facts

	Recording Recording
}

// A Recording says whether the history sees what is issued on a line.
type Recording int

// The ways to record a line.
const (
	MayRecord   Recording = iota // it is not known
	Recorded                     // it does now
	NotRecorded                  // it does not, or not of all tags of the line's pool
)

// On returns the candidate that a number is on a worker's line, and false for a
// number that the layout cannot have.
func On(pool string, l hapax.Layout, id hapax.ID) (c Candidate, worker int64, ok bool) {
	p := placeOf(l, id)
	return Candidate{Name: witness.WorkerLine(pool, p.worker), Position: p.tick, Layout: l}, p.worker, p.ok
}

// Judge puts together what the ledger, the history and the store tell. Lines that
// the ledger knows and nobody named are judged without the store.
func Judge(id hapax.ID, node string, found Found, history *strategy.HistoryFinding, candidates []Candidate) api.Trace {
	t := judgment{api.Trace{Number: id, Node: node, Lines: []api.TraceLine{}, More: found.More}}
	t.Ledger = api.TraceCoverage{On: true, Since: since(found.Since), Damaged: int64(found.Damaged)}
	for _, g := range found.Gaps {
		t.Ledger.Lost += g.Records
	}
	if history != nil {
		t.More = t.More || history.More
		t.History = api.TraceCoverage{On: true, Since: since(history.Since), Damaged: int64(history.Damaged), Lost: history.Lost}
	}
	known := map[string]FoundLine{}
	for _, l := range found.Lines {
		known[l.Name] = l
		if !slices.ContainsFunc(candidates, func(c Candidate) bool { return c.Name == l.Name }) {
			layout, _ := hapax.ParseLayout(l.Layout) // a tag's line has none
			candidates = append(candidates, Candidate{Name: l.Name, Position: l.Position, Layout: layout, Facts: Facts{Maker: l.Maker}})
		}
	}
	for _, c := range candidates {
		t.Lines = append(t.Lines, t.line(c, known[c.Name], history))
	}
	t.unmatched(history)
	slices.SortStableFunc(t.Lines, func(a, b api.TraceLine) int { return cmp.Compare(a.Name, b.Name) })
	return t.Trace
}

// A judgment is a trace in the making.
type judgment struct{ api.Trace }

// unmatched adds what the history has of tags on whose lines the ledger does not have
// the number: a plugin has replaced it, or the ledger does not go back so far.
func (t *judgment) unmatched(history *strategy.HistoryFinding) {
	if history == nil {
		return
	}
	byTag := map[string][]strategy.Issue{}
	for _, i := range history.Issues {
		if !slices.ContainsFunc(t.Lines, func(l api.TraceLine) bool {
			return slices.ContainsFunc(l.Issued, func(h api.TraceHandout) bool { return h == handout(i) })
		}) {
			byTag[i.Tag] = append(byTag[i.Tag], i)
		}
	}
	for tag, issues := range byTag {
		l := api.TraceLine{Name: witness.TagLine(tag), Tag: tag, Grants: []api.TraceGrant{}, Issued: []api.TraceHandout{}}
		for _, i := range issues {
			l.Issued = append(l.Issued, handout(i))
		}
		l.Verdict, l.Why = t.judge(Candidate{}, l)
		t.Lines = append(t.Lines, l)
	}
}

func handout(i strategy.Issue) api.TraceHandout {
	return api.TraceHandout{Tag: i.Tag, First: i.First, Last: i.Last, Caller: i.Caller, Address: i.Address, From: i.From, Until: i.Until}
}

func since(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

func (t *judgment) line(c Candidate, found FoundLine, history *strategy.HistoryFinding) api.TraceLine {
	l := api.TraceLine{Name: c.Name, Grants: []api.TraceGrant{}, Issued: []api.TraceHandout{}}
	system, name := CutSystem(c.Name)
	l.System = system
	tag, isTag := witness.CutTagLine(name)
	if isTag {
		l.Tag = tag
		if own := hapax.ID(c.Position); own != t.Number {
			l.Shown = &own
		}
	} else if pool, worker, ok := CutWorkerLine(name); ok {
		l.Pool, l.Worker = pool, &worker
		if !c.Layout.IsZero() {
			l.Layout = cmp.Or(c.Layout.Name(), c.Layout.String())
			l.Time = new(c.Layout.TimeOf(c.Position))
		}
	}
	// The grants are of other numbers than the one that was shown.
	if c.Facts.Maker != "" {
		found.Grants = nil
	}
	for _, h := range found.Grants {
		g := api.TraceGrant{
			Lo: h.Grant.Lo, Hi: h.Grant.Hi, Node: h.Node, Time: h.Time, Holder: h.Holder,
			Caller: h.By.Name, Address: h.By.Address, Given: h.Given, GivenAt: since(h.GivenAt),
		}
		if isTag {
			g.Key = h.Ref
		} else {
			g.Token = h.Ref
		}
		l.Grants = append(l.Grants, g)
	}
	if history != nil && system == "" { // of foreign systems there is none
		for _, i := range history.Issues {
			if isTag == (i.Strategy == string(hapax.KindSnowflake)) || isTag && i.Tag != tag && !strings.HasPrefix(tag, i.Tag+periodMark) {
				continue
			}
			l.Issued = append(l.Issued, handout(i))
		}
	}
	l.Verdict, l.Why = t.judge(c, l)
	return l
}

func (t *judgment) judge(c Candidate, l api.TraceLine) (api.Verdict, string) {
	f := c.Facts
	// The history first: it has the numbers that were issued, the ledger and the store those that may have been.
	switch n := len(l.Issued); {
	case n == 1:
		i := l.Issued[0]
		return api.VerdictIssued, fmt.Sprintf("issued %s to %s, %s", span(i.From, i.Until), who(i.Caller, i.Address), "as the history of node "+t.Node+" says")
	case n > 1 && f.Restart:
		return api.VerdictIssued, fmt.Sprintf("issued %d times, in periods of their own", n)
	case n > 1:
		return api.VerdictIssued, fmt.Sprintf("the history has it %d times, which must not be: %s", n, twice(l.Issued))
	}
	if f.Maker != "" {
		return api.VerdictUnknown, fmt.Sprintf("%s may make others of the numbers granted, and only a history knows which of them were issued; that of node %s does not have it", f.Maker, t.Node)
	}
	if f.Known && f.Exists && l.Tag != "" && f.Tag.Delta > 1 && c.Position%f.Tag.Delta != f.Tag.Remainder {
		return api.VerdictNeverGranted, fmt.Sprintf("the tag issues only numbers that leave %d when divided by %d", f.Tag.Remainder, f.Tag.Delta)
	}
	// Of several grants the last counts: each one before went back.
	if n := len(l.Grants); n > 0 {
		return t.granted(c, l, l.Grants[n-1])
	}
	switch {
	case !f.Known:
		return api.VerdictUnknown, fmt.Sprintf("the ledger of node %s does not have it%s, and what the store knows is not known here", t.Node, t.reach())
	case f.Restart:
		return api.VerdictUnknown, fmt.Sprintf("the tag's numbers restart, on a line for each period, and the ledger of node %s has it on none of them%s; trace its code, or the line of a period", t.Node, t.reach())
	case !f.Exists && l.Tag != "":
		return api.VerdictNeverGranted, "there is no such tag"
	case !f.Exists:
		return api.VerdictNeverGranted, "this worker ID was never used"
	case l.Tag != "" && c.Position < f.Tag.Start:
		return api.VerdictNeverGranted, fmt.Sprintf("the tag begins at %d", f.Tag.Start)
	case c.Position >= f.Mark:
		return api.VerdictNeverGranted, "it lies at or above the store's mark, " + position(c, f.Mark)
	}
	why := fmt.Sprintf("it lies below the store's mark, %s, and the ledger of node %s does not have it%s: another node was granted it, or nobody, where a mark was raised or an answer of the store was lost",
		position(c, f.Mark), t.Node, t.reach())
	if f.Worker.Holder != "" {
		why += fmt.Sprintf("; the worker ID is or was last held by %s, under fencing token %d", f.Worker.Holder, f.Worker.Token)
	}
	return api.VerdictElsewhere, why
}

// granted judges a number that lies in a grant.
func (t *judgment) granted(c Candidate, l api.TraceLine, g api.TraceGrant) (api.Verdict, string) {
	to := "granted to node " + g.Node + " at " + stamp(g.Time)
	command := By{g.Caller, g.Address} == Command
	switch {
	case command:
		to = "taken by a command on node " + g.Node + " at " + stamp(g.Time)
	case g.Caller != "":
		to = "leased to " + who(g.Caller, g.Address) + ", through node " + g.Node + ", at " + stamp(g.Time)
	}
	if g.Given == Back {
		why := to + ", and handed back at " + stamp(*g.GivenAt) + " without being issued"
		switch {
		case !c.Facts.Known:
			return api.VerdictHandedBack, why + "; what became of it then is not known here"
		case c.Position >= c.Facts.Mark:
			return api.VerdictHandedBack, why + "; nobody was granted it since: it lies at or above the store's mark, " + position(c, c.Facts.Mark)
		}
		return api.VerdictHandedBack, why + "; it lies below the store's mark, " + position(c, c.Facts.Mark) + ", so another node was granted it since, or a mark was raised"
	}
	if g.Given == Offered {
		to += ", which offered it back at " + stamp(*g.GivenAt) + " without having issued it; the store's answer is not recorded"
	}
	switch {
	case g.Given == Offered:
		return api.VerdictGranted, to
	case command:
		return api.VerdictGranted, to + ", which printed it unless it was killed"
	case g.Caller != "":
		return api.VerdictGranted, to + "; what a client issues of its lease is not recorded"
	case c.Facts.Shared != "":
		return api.VerdictGranted, to + fmt.Sprintf("; all nodes issue together from what the strategy %q is granted, and the history of the one that issued it would tell", c.Facts.Shared)
	case l.System != "":
		return api.VerdictGranted, to + "; there is no history of foreign systems"
	case !t.History.On:
		return api.VerdictGranted, to + "; whether it was issued is not recorded, because the history is off"
	case t.History.Lost > 0 || t.History.Damaged > 0:
		return api.VerdictGranted, to + "; the history does not have it, and has lost records: whether it was issued is not known"
	case t.History.Since == nil || t.History.Since.After(g.Time):
		return api.VerdictGranted, to + "; the history does not have it, and does not go back so far: whether it was issued is not known"
	}
	switch c.Recording {
	case NotRecorded:
		if l.Tag == "" {
			return api.VerdictGranted, to + "; whether it was issued is not known: the history does not have it, and does not record all tags of the pool"
		}
		return api.VerdictGranted, to + "; whether it was issued is not known: the history does not record this tag"
	case Recorded:
		return api.VerdictGranted, to + "; the history does not have it: it was not issued, unless the history was off or did not record the tag for a while"
	}
	return api.VerdictGranted, to + "; whether it was issued is not known: the history does not have it, and which tags it records is known only to a server that runs"
}

// reach says where the ledger is no proof.
func (t *judgment) reach() string {
	switch {
	case t.Ledger.Since == nil:
		return " (it is empty)"
	case t.Ledger.Lost > 0 || t.Ledger.Damaged > 0:
		return fmt.Sprintf(" (it begins at %s, and %d records are lost or damaged)", stamp(*t.Ledger.Since), t.Ledger.Lost+t.Ledger.Damaged)
	}
	return " (it begins at " + stamp(*t.Ledger.Since) + ")"
}

func position(c Candidate, mark int64) string {
	if c.Layout.IsZero() {
		return fmt.Sprint(mark)
	}
	return stamp(c.Layout.TimeOf(mark))
}

func stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z") }

func span(from, until time.Time) string {
	if from.Equal(until) {
		return "at " + stamp(from)
	}
	return "between " + stamp(from) + " and " + stamp(until)
}

func who(caller, address string) string {
	name := "somebody without a name"
	if caller != "" {
		name = fmt.Sprintf("token %q", caller)
	}
	if address != "" {
		name += " at " + address
	}
	return name
}

func twice(all []api.TraceHandout) string {
	var parts []string
	for _, i := range all {
		parts = append(parts, who(i.Caller, i.Address)+" "+span(i.From, i.Until))
	}
	return strings.Join(parts, "; ")
}

// order ranks verdicts.
var order = []api.Verdict{api.VerdictIssued, api.VerdictGranted, api.VerdictHandedBack, api.VerdictElsewhere, api.VerdictNeverGranted, api.VerdictUnknown}

// Strongest returns the verdict that outweighs the others, where several nodes
// were asked.
func Strongest(all ...api.Verdict) api.Verdict {
	best := api.VerdictUnknown
	for _, v := range all {
		if slices.Index(order, v) < slices.Index(order, best) {
			best = v
		}
	}
	return best
}
