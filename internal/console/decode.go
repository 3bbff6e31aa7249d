package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/plan"
)

const (
	// maxDecoded is how many numbers or codes the decoder takes at a time.
	maxDecoded = 1000
	// maxShared is how long a question may be, in bytes, to get a URL.
	maxShared = 4 << 10
)

type decoderBody struct {
	Text    string
	Layout  string // as chosen; empty: guessed
	Tag     string // whose codes they are
	Layouts []string
	Used    string // the layout that was taken
	Guessed bool
	Rows    []decoded
	Traces  []api.NodeTrace // of a single number
	Answer  string          // what they come to
	From    string
	Until   string
	Bounds  *bounds
}

// A decoded is one line of the pasted text.
type decoded struct {
	Text   string
	ID     hapax.ID
	Code   bool // the text is a code of that number
	Time   time.Time
	Fields hapax.Fields
	Period string
	Worker string // where this node knows its holder
	Bits   []bitField
	Err    string
}

// A bitField is a part of the drawing of a number's bits.
type bitField struct {
	Name     string
	Value    int64
	X, Width int // in the drawing
	Bits     string
	Hue      int
}

// bitWidth is the width of one bit of the drawing.
const bitWidth = 10

type bounds struct{ Lo, Hi, Where string }

func (c *Console) decoder(v *visit) error {
	if err := v.ParseForm(); err != nil {
		return invalid("form", "(not shown)", "one of up to 64 KiB")
	}
	if q := sharedQuery(v.Form); v.Method == http.MethodPost && len(q) <= maxShared {
		redirect(v.w, "decoder?"+q) // which can be kept, and sent to somebody
		return nil
	}
	out := c.view(v, "Decoder", "decoder")
	b := decoderBody{Text: v.Form.Get("ids"), Layout: v.Form.Get("layout"), Tag: v.Form.Get("tag"), From: v.Form.Get("from"), Until: v.Form.Get("until")}
	pools, _ := c.svc.PoolStatuses(v.Context()) // without the store the layouts that are built in are left
	for _, p := range pools {
		if l, err := hapax.ParseLayout(p.Layout); err == nil && !slices.Contains(b.Layouts, service.LayoutName(l)) {
			b.Layouts = append(b.Layouts, service.LayoutName(l))
		}
	}
	for _, l := range c.svc.Layouts() {
		if name := service.LayoutName(l); !slices.Contains(b.Layouts, name) {
			b.Layouts = append(b.Layouts, name)
		}
	}
	status := http.StatusOK
	if err := c.decode(v.Context(), &b, out.Nodes); err != nil {
		out.Error, status = messageOf(err), statusOf(err)
	}
	if b.From != "" || b.Until != "" {
		if err := b.bound(c.svc); err != nil {
			out.Error, status = messageOf(err), statusOf(err)
		}
	}
	words := strings.Fields(b.Text)
	switch {
	case b.Tag != "" && len(words) > 0:
		out.Command = c.at(append(append([]string{"parse"}, words[:min(len(words), 3)]...), "--tag", b.Tag)...)
	case len(words) > 0 && b.Used != "":
		out.Command = command(append(append([]string{"hapax", "parse"}, words[:min(len(words), 3)]...), "--layout", b.Used)...)
	default:
		out.Command = "hapax parse ID... --layout NAME"
	}
	out.Body = b
	c.render(v.w, status, "decoder", out)
	return nil
}

// sharedQuery returns the query that asks the same as a form.
func sharedQuery(form url.Values) string {
	q := url.Values{}
	for _, field := range []string{"ids", "layout", "tag", "from", "until"} {
		if text := strings.TrimSpace(form.Get(field)); text != "" {
			q.Set(field, text)
		}
	}
	return q.Encode()
}

// decode decodes the pasted text into rows.
func (c *Console) decode(ctx context.Context, b *decoderBody, nodes []nodeView) error {
	// Numbers are pasted from columns and from lists in JSON or SQL.
	words := strings.FieldsFunc(b.Text, func(r rune) bool { return strings.ContainsRune(" \t\r\n,;\"'[]", r) })
	if len(words) > maxDecoded {
		return invalid("numbers", len(words), fmt.Sprintf("up to %d at a time", maxDecoded))
	}
	if len(words) == 0 {
		return nil
	}
	rows, layout := make([]decoded, len(words)), hapax.Layout{}
	var ids []hapax.ID
	coded := b.Tag != ""
	for i, word := range words {
		rows[i].Text = word
		id, err := hapax.ParseID(word)
		if coded {
			// Before the number: a code may be made of digits alone.
			p, codeErr := c.svc.ParseCode(ctx, b.Tag, word)
			if codeErr == nil || err != nil {
				id, err, rows[i].Period, rows[i].Code = p.ID, codeErr, p.Period, codeErr == nil
			}
			coded = codeErr == nil || errors.Is(codeErr, hapax.ErrInvalidID) || err != nil // else the tag has none
		}
		if err != nil {
			rows[i].Err = messageOf(err)
			continue
		}
		rows[i].ID = id
		ids = append(ids, id)
	}
	var err error
	switch {
	case b.Layout != "":
		layout, err = hapax.ParseLayout(b.Layout)
	case b.Tag != "":
		t, tagErr := c.svc.Tag(ctx, b.Tag)
		if err = tagErr; err == nil && t.Kind == hapax.KindSnowflake {
			layout, err = c.svc.PoolLayout(ctx, t.Pool)
		}
	default:
		layout, b.Guessed = guess(ids, b.Layouts, time.Now()), true
	}
	if err != nil {
		return err
	}
	if !layout.IsZero() {
		b.Used = service.LayoutName(layout)
	}
	for i := range rows {
		if rows[i].Err == "" && !layout.IsZero() {
			rows[i].take(layout, nodes, i < 50)
		}
	}
	b.Rows = rows
	if len(ids) == 1 {
		req := service.TraceRequest{Text: words[0], Tag: b.Tag, Code: rows[0].Code}
		if b.Tag == "" {
			req.Layout = b.Layout
		}
		b.Traces = c.traces(ctx, req)
		b.Answer = answerOf(b.Traces)
	}
	return nil
}

// answerOf returns a sentence about who got a number, as far as any node knows.
func answerOf(all []api.NodeTrace) string {
	granted, here := "", ""
	for _, t := range all {
		for _, l := range t.Trace.Lines {
			for _, at := range l.Issued {
				return fmt.Sprintf("Issued from %s by %s at %s%s.", l.Name, t.Name, stamp(at.From), toWhom(at.Caller))
			}
			if l.Verdict != api.VerdictGranted && l.Verdict != api.VerdictIssued && l.Verdict != api.VerdictHandedBack {
				continue
			}
			for _, g := range l.Grants {
				text := fmt.Sprintf("Granted on %s to %s at %s%s.", l.Name, cmp.Or(shown(g.Node), t.Name), stamp(g.Time), toWhom(g.Caller))
				// A number that was given back may be granted again: then that grant is the answer.
				if l.Verdict == api.VerdictHandedBack {
					here = text + " It was given back without being issued."
				} else {
					granted = text
				}
			}
		}
	}
	return cmp.Or(granted, here, "No node that answers knows of a grant with it.")
}

func toWhom(caller string) string {
	if caller == "" {
		return ""
	}
	return " to " + caller
}

// take fills in a layout's fields.
func (d *decoded) take(l hapax.Layout, nodes []nodeView, drawn bool) {
	fields, err := l.Parse(d.ID)
	if err != nil {
		d.Err = messageOf(err)
		return
	}
	d.Fields = fields
	if d.Time, err = l.Time(d.ID); err != nil {
		d.Err = messageOf(err)
		return
	}
	if w, ok := fields.Get(l.WorkerField()); ok {
		for _, n := range nodes {
			if n.Facts == nil {
				continue
			}
			for _, p := range n.Facts.Pools {
				if p.Worker == w {
					d.Worker = n.Called() + " has worker " + fmt.Sprint(w) + " of " + p.Name + " now"
				}
			}
		}
	}
	if !drawn {
		return
	}
	text := fmt.Sprintf("%064b", uint64(d.ID))
	for f := range l.Fields() {
		value, _ := fields.Get(f.Name)
		at := 64 - f.Shift - f.Bits
		d.Bits = append(d.Bits, bitField{f.Name, value, at * bitWidth, f.Bits * bitWidth, text[at : at+f.Bits], hueOf(f.Name)})
	}
}

// guess returns the layout of which the numbers make most sense: all can be of it, and
// were made in the last ten years. No layout for numbers that count.
func guess(ids []hapax.ID, layouts []string, now time.Time) hapax.Layout {
	var best hapax.Layout
	var nearest time.Duration = -1
	for _, name := range layouts {
		l, err := hapax.ParseLayout(name)
		if err != nil || len(ids) == 0 {
			continue
		}
		worst, fits := time.Duration(0), true
		for _, id := range ids {
			at, err := l.Time(id)
			// Numbers that only count would be of the first moments of any layout.
			if _, parsed := l.Parse(id); err != nil || parsed != nil || at.After(now.Add(24*time.Hour)) || at.Before(now.AddDate(-10, 0, 0)) || at.Sub(l.Epoch()) < 24*time.Hour {
				fits = false
				break
			}
			worst = max(worst, now.Sub(at).Abs())
		}
		if fits && (nearest < 0 || worst < nearest) { // the first of equals: pools in use come first
			best, nearest = l, worst
		}
	}
	return best
}

// bound computes the numbers of a range of time, for a query of a database.
func (b *decoderBody) bound(svc *service.Service) error {
	l, err := svc.Layout(cmp.Or(b.Layout, b.Used))
	if err != nil {
		return err
	}
	first := ""
	for f := range l.Fields() {
		first = f.Name
		break
	}
	if first != hapax.FieldTime {
		return invalid("layout", service.LayoutName(l), "one whose highest field is the time; in this one numbers of a time do not lie together")
	}
	edge := func(field, text string) (hapax.ID, error) {
		at, err := parseTime(field, text)
		if err != nil {
			return 0, err
		}
		tick, err := l.TickOf(at)
		if err != nil {
			return 0, err
		}
		// The other fields are zero: this is the lowest number of the tick.
		fields := hapax.Fields{{Name: hapax.FieldTime, Value: tick}}
		return svc.Compose(l.String(), fields)
	}
	lo, err := edge("from", b.From)
	if err != nil {
		return err
	}
	hi, err := edge("until", b.Until)
	if err != nil {
		return err
	}
	b.Used = service.LayoutName(l)
	b.Bounds = &bounds{lo.String(), hi.String(), fmt.Sprintf("WHERE id >= %s AND id < %s", lo, hi)}
	return nil
}

// parseTime reads a time as a person writes it, in UTC where it says no zone.
func parseTime(field, text string) (time.Time, error) {
	for _, form := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.Parse(form, strings.TrimSpace(text)); err == nil {
			return at, nil
		}
	}
	return time.Time{}, invalid(field, text, "a time such as 2026-11-23T04:05:00Z")
}

type plannerBody struct {
	Rate, Nodes, Starts, Years string
	JSSafe                     bool
	Layouts                    []plannedLayout
	Proposed                   *plannedLayout
	None                       string // why nothing can be proposed
}

type plannedLayout struct {
	Name string
	Spec string
	plan.Load
	Bits []bitField
	Err  string
}

// rank sorts layouts: those that carry the load first, those whose time is over last.
func (p plannedLayout) rank() int {
	switch {
	case p.Err != "":
		return 2
	case len(p.Lacks) > 0:
		return 1
	}
	return 0
}

func (c *Console) planner(v *visit) error {
	q := v.URL.Query()
	out := c.view(v, "Planner", "planner")
	b := plannerBody{
		Rate: cmp.Or(q.Get("rate"), fmt.Sprint(plan.DefaultRate)), Nodes: cmp.Or(q.Get("nodes"), fmt.Sprint(plan.DefaultNodes)),
		Starts: cmp.Or(q.Get("starts"), "10"), Years: cmp.Or(q.Get("years"), fmt.Sprint(plan.DefaultYears)), JSSafe: q.Get("js") != "",
	}
	words := []string{"hapax", "plan", "--rate", b.Rate, "--nodes", b.Nodes, "--starts", b.Starts, "--years", b.Years}
	if b.JSSafe {
		words = append(words, "--js-safe")
	}
	out.Command = command(words...)
	status := http.StatusOK
	var w plan.Wishes
	for _, f := range []struct {
		name, text string
		to         any
	}{{"rate", b.Rate, &w.Rate}, {"nodes", b.Nodes, &w.Nodes}, {"starts", b.Starts, &w.Starts}, {"years", b.Years, &w.Years}} {
		if _, err := fmt.Sscan(f.text, f.to); err != nil {
			out.Error, status = messageOf(invalid(f.name, f.text, "a number")), http.StatusBadRequest
		}
	}
	w.JSSafe = b.JSSafe
	w, err := w.WithDefaults()
	if err != nil && out.Error == "" {
		out.Error, status = messageOf(err), statusOf(err)
	}
	if out.Error == "" {
		if l, err := plan.Propose(w); err == nil {
			p := planned(l, w)
			b.Proposed = &p
		} else {
			b.None = messageOf(err)
		}
		for _, l := range c.svc.Layouts() {
			b.Layouts = append(b.Layouts, planned(l, w))
		}
		slices.SortStableFunc(b.Layouts, func(x, y plannedLayout) int { return cmp.Compare(x.rank(), y.rank()) })
	}
	out.Body = b
	c.render(v.w, status, "planner", out)
	return nil
}

func planned(l hapax.Layout, w plan.Wishes) plannedLayout {
	p := plannedLayout{Name: service.LayoutName(l), Spec: l.String()}
	var err error
	if p.Load, err = plan.Carry(l, w); err != nil {
		p.Err = messageOf(err)
	}
	if ends := l.Ends(); !ends.After(w.Now) {
		p.Err = "its time ended on " + ends.UTC().Format(time.DateOnly)
	}
	for f := range l.Fields() {
		p.Bits = append(p.Bits, bitField{Name: f.Name, X: (64 - f.Shift - f.Bits) * bitWidth, Width: f.Bits * bitWidth, Bits: bitsOf(f.Bits), Hue: hueOf(f.Name)})
	}
	return p
}

func bitsOf(n int) string {
	if n == 1 {
		return "1 bit"
	}
	return fmt.Sprintf("%d bits", n)
}

// hueOf returns the colour of a field, which it has in every layout.
func hueOf(field string) int {
	switch field {
	case hapax.FieldTime:
		return 0
	case "worker", "machine":
		return 1
	case hapax.FieldSequence:
		return 2
	case "version":
		return 3
	case "type":
		return 4
	}
	return 5
}
