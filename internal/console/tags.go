package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
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
	Sort    string // a column of the tags in use; empty: all tags by name
	Columns []column
	Start   string // URL of the first page
	Next    string // of the next one
	After   string // the name after which the page begins
	Has     string // what names must have in them to be shown
	First   bool   // it is the first page
	InUse   int
	Form    createForm
	Would   *creation // what would come of the form
}

// A column of the tags is a link that sorts by it; its key is - where it is none.
type column struct {
	Title, Key string
	Numeric    bool
	Link       string
}

var tagColumns = []column{
	{"Tag", "", false, ""},
	{"Kind", "-", false, ""},
	{"Numbers/s", "rate", true, ""},
	{"Ten minutes", "-", false, ""},
	{"Issued", "issued", true, ""},
	{"Burnt", "burnt", true, ""},
	{"In hand", "hand", true, ""},
	{"Next refill", "refill", false, ""},
	{"Step", "step", true, ""},
	{"Mark", "-", true, ""},
	{"Nodes", "nodes", true, ""},
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
	q := v.URL.Query()
	b.Has = strings.TrimSpace(q.Get("has"))
	sums = slices.DeleteFunc(sums, func(s tagSum) bool { return !b.shows(s.Name) })
	b.InUse = len(sums)
	for _, column := range tagColumns {
		column.Link = b.link(column.Key, "", "")
		b.Columns = append(b.Columns, column)
	}
	b.Start = b.link(q.Get("sort"), "", "")
	var err error
	if order := tagOrders[q.Get("sort")]; order != nil {
		b.Sort = q.Get("sort")
		b.sorted(sums, order, q.Get("from"))
	} else if err = b.named(c, v, sums, q.Get("after")); err != nil { // what is in use is known without the store
		out.Error = cmp.Or(out.Error, "The store does not tell which tags there are; below are those in use. "+messageOf(err))
		// Of one page: the link to the next one would ask the store once more.
		b.sorted(sums, tagOrders["rate"], "")
		b.Next = ""
	}
	alarms := alarmsOf(out.Nodes)
	for i := range b.Rows {
		b.Rows[i].Alarms = len(alarms[b.Rows[i].Name])
	}
	out.Live = out.Live && (b.Has == "" || b.Sort != "") // a filter of all tags reads many of them
	out.Body = b
	c.render(v.w, status, "tags", out)
	return nil
}

// sorted fills in a page of the tags in use.
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
		b.Next = b.link(b.Sort, "from", strconv.Itoa(at+tagsPage))
	}
}

// link returns the address of the list in an order, with the filter as it is.
func (b *tagsBody) link(sort, at, value string) string {
	q := url.Values{}
	for key, value := range map[string]string{"sort": sort, "has": b.Has, at: value} {
		if value != "" {
			q.Set(key, value)
		}
	}
	if len(q) == 0 {
		return "tags"
	}
	return "tags?" + q.Encode()
}

// shows reports whether a name passes the filter.
func (b *tagsBody) shows(name string) bool {
	return strings.Contains(strings.ToLower(name), strings.ToLower(b.Has))
}

// maxSifted is how many tags of the store are looked at for a page that a filter leaves
// few of; the next page goes on there.
const maxSifted = 10 * service.MaxPage

// named fills in a page of all tags.
func (b *tagsBody) named(c *Console, v *visit, sums []tagSum, after string) error {
	by := map[string]tagSum{}
	for _, s := range sums {
		by[s.Name] = s
	}
	b.After, b.First = after, after == ""
	most := tagsPage
	if b.Has != "" {
		// A filter leaves few of each page: the store is asked less often for large ones.
		most = service.MaxPage
	}
	for sifted := 0; ; {
		tags, err := c.svc.Tags(v.Context(), after, most)
		if err != nil {
			return err
		}
		for _, t := range tags {
			if len(b.Rows) == tagsPage {
				b.Next = b.link("", "after", after)
				return nil
			}
			if after = t.Name; b.shows(t.Name) {
				b.Rows = append(b.Rows, tagRow{Tag: t, Sum: by[t.Name]})
			}
		}
		switch sifted += len(tags); {
		case len(tags) < most:
			return nil
		case len(b.Rows) == tagsPage, sifted >= maxSifted:
			b.Next = b.link("", "after", after)
			return nil
		}
	}
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
			t.Past = n.Facts.pastOf(t)
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
	s.Past = addTrails(s.Past, t.Past)
	s.Nodes++
}

// addTrails adds rates to a sum of such, the newest ones of both being of the same time.
func addTrails(sum, more []float32) []float32 {
	more = more[max(0, len(more)-trailPoints):]
	if len(sum) < len(more) {
		sum = slices.Concat(make([]float32, len(more)-len(sum)), sum)
	}
	for i, r := range more {
		sum[len(sum)-len(more)+i] += r
	}
	return sum
}

// alarmsOf returns the alarms that are up on any node, by their subjects.
func alarmsOf(nodes []nodeView) map[string][]nodeAlarm {
	by := map[string][]nodeAlarm{}
	for _, n := range nodes {
		if n.Facts == nil {
			continue
		}
		for _, a := range n.Facts.Readiness.Alarms {
			if a.About != "" {
				by[a.About] = append(by[a.About], nodeAlarm{n.Called(), a, aboutLink(nodes, a.Name, a.About)})
			}
		}
	}
	return by
}

type nodeTag struct {
	Node string
	tagFacts
}

// A nodeLack tells why a node cannot issue from the tag, or from its pool.
type nodeLack struct {
	Node string
	api.Lack
	See string
}

// left returns how many numbers are left on the line of a segment.
func left(t hapax.Tag) int64 { return max(0, hapax.MaxMark-t.Mark) / max(1, t.Delta) }

type tagBody struct {
	hapax.Tag
	Sum       tagSum
	ByNode    []nodeTag
	Cannot    []nodeLack    // who cannot issue from it
	Left      int64         // numbers that can still be granted
	LineEnds  time.Duration // at the present rate; negative: not to be seen
	Ends      time.Time     // of its pool
	Budget    *nodeBudget   // the shortest on any node, where it is this tag's
	Alarms    []nodeAlarm
	Forecasts []api.Forecast
	Chart     chart
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
	b := tagBody{Tag: t, Left: left(t), LineEnds: -1, Confirm: v.URL.Query().Has("delete"), Alarms: alarmsOf(out.Nodes)[name]}
	for _, n := range out.Nodes {
		if n.Facts != nil {
			b.add(n)
		}
	}
	b.Forecasts = soonest(b.Forecasts)
	b.Chart = trailChart(b.Sum.Past, time.Now())
	// A Duration holds little more, and nobody plans beyond that.
	if seconds := float64(b.Left) / b.Sum.Rate; b.Sum.Rate > 0 && seconds < 250*365*24*3600 {
		b.LineEnds = api.Budget{Seconds: seconds}.Lasts()
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
			f.Past = n.Facts.pastOf(f)
			b.ByNode = append(b.ByNode, nodeTag{n.Called(), f})
			b.Sum.add(f)
		}
	}
	kind, name := api.KindTag, b.Name
	if b.Pool != "" {
		kind, name = api.KindPool, b.Pool
	}
	r := n.Facts.Readiness
	for _, lack := range r.Cannot {
		if lack.Kind == kind && lack.Name == name {
			b.Cannot = append(b.Cannot, nodeLack{n.Called(), lack, seeCode(string(lack.Code))})
		}
	}
	if l := r.Budget; l != nil && l.Kind == kind && l.Name == name && (b.Budget == nil || l.Seconds < b.Budget.Seconds) {
		b.Budget = &nodeBudget{n.Called(), *l}
	}
	for _, f := range r.Forecasts {
		if f.Kind == kind && f.Name == name {
			b.Forecasts = append(b.Forecasts, f)
		}
	}
}
