package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/plan"
)

// planJSON is what a layout can carry, and how its numbers lie to those in use.
type planJSON struct {
	Layout       string    `json:"layout"` // the name, or else the spec
	Epoch        time.Time `json:"epoch"`
	Unit         string    `json:"unit"`
	PerWorker    float64   `json:"ids_per_second_and_worker"`
	InAll        float64   `json:"ids_per_second"`
	Workers      int64     `json:"workers"`
	Needed       int64     `json:"workers_needed"`
	Starts       int64     `json:"starts_per_day"`                        // if each follows a crash
	Disposable   float64   `json:"years_of_disposable_workers,omitempty"` // if every start uses one up
	Ends         time.Time `json:"ends"`
	Years        float64   `json:"years"`
	StoreWrites  float64   `json:"store_writes_per_second"`
	From         time.Time `json:"from"` // no clock may be behind this
	Values       spanJSON  `json:"values"`
	Used         *spanJSON `json:"used,omitempty"`
	Disjoint     *bool     `json:"disjoint,omitempty"`
	OverlapFrom  time.Time `json:"overlap_from,omitzero"`
	OverlapUntil time.Time `json:"overlap_until,omitzero"`
	Lacks        []string  `json:"lacks,omitempty"`
}

type spanJSON struct {
	Min hapax.ID `json:"min"`
	Max hapax.ID `json:"max"`
}

func planCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what a layout can carry, or find a layout",
		Long: `Plan prints what a layout can carry: numbers a second, worker IDs, when its time
ends, what it costs the store, and the smallest and the largest number that it can
issue from now until then. Without --layout it finds a layout that carries what you
ask for.

With --min and --max, the smallest and the largest number in use, the layout that
it finds never issues a number between them: use it for a deployment whose time bits
are used up. A layout given by --layout is checked for that; the exit code is 1 if it
issues such numbers, or cannot carry what you ask for.

The proof is the two spans. It holds while no clock is more than a day behind, and
if --max is above everything that the old system has issued when it is switched off.`,
		Example: `  hapax plan --layout leaf --nodes 200
  hapax plan --rate 50000 --nodes 20 --years 30 --js-safe
  hapax plan --min 6755399441055744 --max 9223372036854775807
  hapax plan --min 6755399441055744 --max 9223372036854775807 \
    --layout time:30,worker:22,sequence:11,unit=1s,epoch=2021-01-19T16:00:00Z`,
		Args: arguments(0, 0),
	}
	flags := cmd.Flags()
	layoutText := flags.String("layout", "", "check this layout: a built-in name or a spec (see hapax layouts)")
	var w plan.Wishes
	flags.Float64Var(&w.Rate, "rate", plan.DefaultRate, "numbers a second at the peak, on all nodes together")
	flags.Int64Var(&w.Nodes, "nodes", plan.DefaultNodes, "nodes that issue at the same time")
	flags.Float64Var(&w.Starts, "starts", 0, "starts of a node a day, on all nodes together")
	flags.Float64Var(&w.Years, "years", plan.DefaultYears, "how long the layout has to last")
	flags.BoolVar(&w.JSSafe, "js-safe", false, "numbers stay below 2^53, where JavaScript is exact")
	least := flags.String("min", "", "the smallest number in use")
	most := flags.String("max", "", "the largest number in use")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := noZeros(flags, "rate", "nodes", "years"); err != nil {
			return err
		}
		w.Now = time.Now()
		used, err := plan.ParseUsed(*least, *most)
		if err != nil {
			return err
		}
		layout, err := plannedLayout(*layoutText, w, used)
		if err != nil {
			return err
		}
		load, err := plan.Carry(layout, w)
		if err != nil {
			return err
		}
		p := newPlanJSON(layout, load, used)
		if *asJSON {
			err = newOutput(cmd, true).add(p)
		} else {
			err = printPlan(cmd, layout, load, p)
		}
		if err != nil {
			return err
		}
		return p.verdict()
	}
	return cmd
}

// noZeros refuses a zero that was given where it would stand for the default.
func noZeros(flags *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if v, err := strconv.ParseFloat(flags.Lookup(name).Value.String(), 64); flags.Changed(name) && err == nil && v == 0 {
			return &hapax.ValueError{Field: "--" + name, Value: 0, Allowed: "more than 0", Err: hapax.ErrInvalidArgument}
		}
	}
	return nil
}

func plannedLayout(text string, w plan.Wishes, used *plan.Span) (hapax.Layout, error) {
	switch {
	case text != "":
		return hapax.ParseLayout(text)
	case used != nil:
		return plan.Disjoint(w, *used)
	}
	return plan.Propose(w)
}

func newPlanJSON(l hapax.Layout, load plan.Load, used *plan.Span) planJSON {
	p := planJSON{
		Layout: service.LayoutName(l), Epoch: l.Epoch(), Unit: unit(l.Unit()), PerWorker: load.PerWorker, InAll: load.InAll,
		Workers: load.Workers, Needed: load.Needed, Starts: int64(load.Starts), Disposable: load.Disposable, Ends: ends(l), Years: load.Years,
		StoreWrites: load.StoreWrites, From: load.From.UTC().Truncate(time.Second), Values: spanJSON(load.Values), Lacks: load.Lacks,
	}
	if used != nil {
		first, until, collide := plan.Collisions(l, load.From, *used)
		p.Used, p.Disjoint = (*spanJSON)(used), new(!collide && !load.Values.Overlaps(*used))
		if collide {
			p.OverlapFrom, p.OverlapUntil = first, earlier(until, ends(l))
		}
	}
	return p
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// verdict is the error for a layout that will not do.
func (p planJSON) verdict() error {
	switch {
	case p.Disjoint != nil && !*p.Disjoint && !p.OverlapFrom.IsZero():
		return fmt.Errorf("this layout issues numbers among those in use, from %s until %s; leave out --layout to find one that does not",
			p.OverlapFrom.Format(time.RFC3339), p.OverlapUntil.Format(time.RFC3339))
	case p.Disjoint != nil && !*p.Disjoint:
		return fmt.Errorf("that this layout issues no number in use cannot be proved; leave out --layout to find one for which it can")
	case len(p.Lacks) > 0:
		return fmt.Errorf("this layout cannot carry that: %s", strings.Join(p.Lacks, "; "))
	}
	return nil
}

func printPlan(cmd *cobra.Command, l hapax.Layout, load plan.Load, p planJSON) error {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	rounded := func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
	rows := [][2]string{
		{"layout", p.Layout},
		{"bits", bits(l)},
		{"epoch", p.Epoch.Format(time.RFC3339Nano)},
		{"unit", p.Unit},
		{"ends", p.Ends.Format(time.RFC3339) + ", in " + years(p.Years)},
		{"numbers a second and worker", number(p.PerWorker)},
		{"numbers a second in all", number(p.InAll)},
		{"a node has to issue", rounded(load.PerNode) + " a second"},
		{"worker IDs", fmt.Sprintf("%d, of which %d are needed", p.Workers, p.Needed)},
		{"starts a day", fmt.Sprintf("%d, if each follows a crash", p.Starts)},
	}
	last := fmt.Sprintf("%d starts", p.Workers)
	if p.Disposable > 0 {
		last += ", " + years(p.Disposable)
	}
	rows = append(rows,
		[2]string{"if each start uses one up", "they last " + last},
		[2]string{"store writes", writes(p.StoreWrites)},
		[2]string{"numbers from " + p.From.Format(time.RFC3339), fmt.Sprintf("%d to %d", p.Values.Min, p.Values.Max)})
	if p.Used != nil {
		rows = append(rows, [2]string{"numbers in use", fmt.Sprintf("%d to %d", p.Used.Min, p.Used.Max)}, [2]string{"disjoint", p.proof()})
	}
	out := newOutput(cmd, false)
	for _, r := range rows {
		if err := out.add(nil, r[0], r[1]); err != nil {
			return err
		}
	}
	return out.flush()
}

// years writes a span of years as people say it, in the two largest units.
func years(v float64) string {
	const day = 365.25 // days of a year
	for _, u := range []struct {
		name   string
		years  float64
		within float64 // how many of the next unit make one; 0: no smaller unit is told
		next   string
	}{
		{"year", 1, 12, "month"},
		{"month", 1. / 12, 30.4, "day"},
		{"day", 1 / day, 24, "hour"},
		{"hour", 1 / day / 24, 60, "minute"},
		{"minute", 1 / day / 24 / 60, 60, "second"},
	} {
		n := v / u.years
		if n < 1 {
			continue
		}
		if n >= 1000 {
			return counted(math.Round(n), u.name)
		}
		whole := math.Floor(n)
		text := counted(whole, u.name)
		if rest := math.Floor((n - whole) * u.within); rest >= 1 {
			text += " " + counted(rest, u.next)
		}
		return text
	}
	return counted(math.Round(v*day*24*3600), "second")
}

func counted(n float64, unit string) string {
	text := strconv.FormatFloat(n, 'f', -1, 64) + " " + unit
	if n != 1 {
		text += "s"
	}
	return text
}

// writes tells how often the store is written to.
func writes(perSecond float64) string {
	if perSecond >= 1 || perSecond <= 0 {
		return strconv.FormatFloat(perSecond, 'f', 1, 64) + " a second"
	}
	return "one every " + years(1/perSecond/365.25/24/3600)
}

// proof tells in one line how the spans lie.
func (p planJSON) proof() string {
	switch {
	case !*p.Disjoint:
		return "no"
	case p.Values.Min > p.Used.Max:
		return fmt.Sprintf("yes: %d > %d", p.Values.Min, p.Used.Max)
	}
	return fmt.Sprintf("yes: %d < %d", p.Values.Max, p.Used.Min)
}
