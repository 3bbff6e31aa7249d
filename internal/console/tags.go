package console

import (
	"cmp"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// tagsPage is how many tags a page shows.
const tagsPage = 100

type tagRow struct {
	hapax.Tag
	Sum    tagSum
	Alarms int // that are up about it
}

type tagsBody struct {
	Rows    []tagRow
	Sort    string // a column of what is in use; empty: all tags by name
	Columns []column
	Next    string // URL of the next page
	After   string // the name after which the page begins
	First   bool   // it is the first page
	InUse   int
	Form    createForm
	Would   *creation // what would come of the form
}

// A column of the tags is a link that sorts by it.
type column struct {
	Title, Key string
	Numeric    bool
}

var tagColumns = []column{
	{"Tag", "", false},
	{"Kind", "-", false},
	{"Numbers/s", "rate", true},
	{"Issued", "issued", true},
	{"Burnt", "burnt", true},
	{"In hand", "hand", true},
	{"Next refill", "refill", false},
	{"Step", "step", true},
	{"Mark", "-", true},
	{"Nodes", "nodes", true},
}

// tagOrders sort what is in use, the most or the nearest first.
var tagOrders = map[string]func(a, b tagSum) int{
	"rate":   func(a, b tagSum) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Issued, a.Issued)) },
	"issued": func(a, b tagSum) int { return cmp.Compare(b.Issued, a.Issued) },
	"burnt":  func(a, b tagSum) int { return cmp.Compare(b.Burnt, a.Burnt) },
	"hand":   func(a, b tagSum) int { return cmp.Compare(b.Remaining, a.Remaining) },
	"refill": func(a, b tagSum) int { return cmp.Compare(uint64(a.Lasts()), uint64(b.Lasts())) }, // without end is last
	"step":   func(a, b tagSum) int { return cmp.Compare(b.Step, a.Step) },
	"nodes":  func(a, b tagSum) int { return cmp.Compare(b.Nodes, a.Nodes) },
}

func (c *Console) tags(v *visit) error {
	return c.showTags(v, http.StatusOK, tagsBody{Form: createForm{Kind: string(hapax.KindSegment), Step: "1000"}}, "")
}

// showTags shows the list, with the form as it was filled in.
func (c *Console) showTags(v *visit, status int, b tagsBody, wrong string) error {
	out := c.view(v, "Tags", "tags")
	out.Live, out.Command, out.Error = v.Method == http.MethodGet, c.at("tags", "list"), wrong
	out.Done = doneText(v)
	sums := busiest(out.Nodes)
	b.Columns, b.InUse = tagColumns, len(sums)
	q := v.URL.Query()
	var err error
	if order := tagOrders[q.Get("sort")]; order != nil {
		b.Sort = q.Get("sort")
		b.sorted(sums, order, q.Get("from"))
	} else if err = b.named(c, v, sums, q.Get("after")); err != nil { // what is in use is known without the store
		out.Error = cmp.Or(out.Error, "The store does not tell which tags there are; below are those in use. "+messageOf(err))
		b.sorted(sums, tagOrders["rate"], "")
		b.Next = ""
	}
	alarms := alarmsOf(out.Nodes)
	for i := range b.Rows {
		b.Rows[i].Alarms = len(alarms[b.Rows[i].Name])
	}
	out.Body = b
	c.render(v.w, status, "tags", out)
	return nil
}

// sorted fills in a page of what is in use.
func (b *tagsBody) sorted(sums []tagSum, order func(a, b tagSum) int, from string) {
	slices.SortStableFunc(sums, order)
	at, _ := strconv.Atoi(from)
	at = min(max(at, 0), len(sums))
	b.First = at == 0
	for _, s := range sums[at:min(at+tagsPage, len(sums))] {
		kind := hapax.KindSegment
		if s.Pool != "" {
			kind = hapax.KindSnowflake
		}
		b.Rows = append(b.Rows, tagRow{Tag: hapax.Tag{Name: s.Name, Kind: kind, Pool: s.Pool}, Sum: s})
	}
	if at+tagsPage < len(sums) {
		b.Next = "tags?" + url.Values{"sort": {b.Sort}, "from": {strconv.Itoa(at + tagsPage)}}.Encode()
	}
}

// named fills in a page of all tags.
func (b *tagsBody) named(c *Console, v *visit, sums []tagSum, after string) error {
	tags, err := c.svc.Tags(v.Context(), after, tagsPage)
	if err != nil {
		return err
	}
	b.After, b.First = after, after == ""
	if len(tags) == tagsPage {
		b.Next = "tags?" + url.Values{"after": {tags[len(tags)-1].Name}}.Encode()
	}
	by := map[string]tagSum{}
	for _, s := range sums {
		by[s.Name] = s
	}
	for _, t := range tags {
		b.Rows = append(b.Rows, tagRow{Tag: t, Sum: by[t.Name]})
	}
	return nil
}

// A tagSum is what all nodes together have of a tag.
type tagSum struct {
	tagFacts
	Nodes int // that issue from it
}

// busiest adds up what the nodes say of each tag, the one that issues most first.
func busiest(nodes []nodeView) []tagSum {
	at := map[string]int{}
	var sums []tagSum
	for _, n := range nodes {
		if n.Facts == nil {
			continue
		}
		for _, t := range n.Facts.Tags {
			i, ok := at[t.Name]
			if !ok {
				i = len(sums)
				at[t.Name], sums = i, append(sums, tagSum{tagFacts: tagFacts{Name: t.Name, Pool: t.Pool}})
			}
			sums[i].add(t)
		}
	}
	slices.SortFunc(sums, func(a, b tagSum) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Issued, a.Issued), cmp.Compare(a.Name, b.Name))
	})
	return sums
}

func (s *tagSum) add(t tagFacts) {
	s.Rate += t.Rate
	s.Issued += t.Issued
	s.Burnt += t.Burnt
	s.Remaining += t.Remaining
	s.Refills += t.Refills
	s.Waits += t.Waits
	s.Step = max(s.Step, t.Step)
	s.Took = max(s.Took, t.Took)
	s.Nodes++
}

// alarmsOf returns the alarms that are up on any node, by what they are about.
func alarmsOf(nodes []nodeView) map[string][]nodeAlarm {
	by := map[string][]nodeAlarm{}
	for _, n := range nodes {
		if n.Facts == nil {
			continue
		}
		for _, a := range n.Facts.Readiness.Alarms {
			if a.About != "" {
				by[a.About] = append(by[a.About], nodeAlarm{n.Called(), a})
			}
		}
	}
	return by
}

type nodeTag struct {
	Node string
	tagFacts
}

type tagBody struct {
	hapax.Tag
	Sum       tagSum
	ByNode    []nodeTag
	Left      int64         // numbers up to 2^63 - 1
	LineEnds  time.Duration // at the present rate; negative: not to be seen
	Ends      time.Time     // of its pool
	Budget    *nodeBudget   // the shortest on any node, where it is this tag's
	Alarms    []nodeAlarm
	Forecasts []service.Forecast
	Form      changeForm
	Confirm   bool // deletion
	Command   string
}

func (c *Console) tag(v *visit) error {
	return c.showTag(v, http.StatusOK, v.URL.Query().Get("name"), nil, "")
}

func (c *Console) showTag(v *visit, status int, name string, form *changeForm, wrong string) error {
	t, err := c.svc.Tag(v.Context(), name)
	if err != nil {
		return err
	}
	out := c.view(v, "Tag "+name, "tags")
	out.Live, out.Command, out.Error, out.Done = v.Method == http.MethodGet, c.at("tags", "show", name), wrong, doneText(v)
	b := tagBody{Tag: t, Left: math.MaxInt64 - t.Mark, LineEnds: -1, Confirm: v.URL.Query().Has("delete"), Alarms: alarmsOf(out.Nodes)[name]}
	for _, n := range out.Nodes {
		if n.Facts != nil {
			b.add(n)
		}
	}
	b.Forecasts = soonest(b.Forecasts)
	if seconds := float64(b.Left) / b.Sum.Rate; b.Sum.Rate > 0 && seconds < 250*365*24*3600 {
		b.LineEnds = lasting(seconds)
	}
	if t.Pool != "" {
		if l, err := c.svc.PoolLayout(v.Context(), t.Pool); err == nil {
			b.Ends = l.Ends()
		}
	}
	if b.Form = formOf(t); form != nil {
		b.Form = *form
	}
	b.Command = c.at("tags", "delete", name)
	out.Body = b
	c.render(v.w, status, "tag", out)
	return nil
}

// add takes what a node has of the tag, or of its pool.
func (b *tagBody) add(n nodeView) {
	for _, f := range n.Facts.Tags {
		if f.Name == b.Name {
			b.ByNode = append(b.ByNode, nodeTag{n.Called(), f})
			b.Sum.add(f)
		}
	}
	kind, name := service.KindTag, b.Name
	if b.Pool != "" {
		kind, name = service.KindPool, b.Pool
	}
	r := n.Facts.Readiness
	if l := r.Budget; l != nil && l.Kind == kind && l.Name == name && (b.Budget == nil || l.Seconds < b.Budget.Seconds) {
		b.Budget = &nodeBudget{n.Called(), *l}
	}
	for _, f := range r.Forecasts {
		if f.Kind == kind && f.Name == name {
			b.Forecasts = append(b.Forecasts, f)
		}
	}
}
