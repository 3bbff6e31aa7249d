// Package page puts what a benchmark found into its section of docs/benchmarks.md, and
// draws it.
package page

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax/bench/internal/host"
)

// Put replaces a section of a page, which lies between "<!-- NAME -->" and
// "<!-- end of NAME -->" there.
func Put(path, name string, text []byte) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	before, rest, found := bytes.Cut(old, []byte(begin))
	_, after, ended := bytes.Cut(rest, []byte(end))
	if !found || !ended {
		return fmt.Errorf("%s has no section between %q and %q", path, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(path, slices.Concat(before, []byte(begin), text, []byte(end), after), 0o644)
}

// Conditions says in a sentence what was measured, by which command, and where.
func Conditions(ctx context.Context, command, how string) string {
	return fmt.Sprintf("`%s`, %s, at %s, on %s, %d cores, %s; load average at the end %s. %s\n\n",
		command, time.Now().UTC().Format(time.DateOnly), Commit(ctx), host.Processor(), runtime.NumCPU(),
		strings.Replace(runtime.Version(), "go", "Go ", 1), host.Load(), how)
}

// Commit names the commit that is measured.
func Commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "an unknown commit"
	}
	return strings.TrimSpace(string(out))
}

// A Bar is one line of a chart.
type Bar struct {
	Name  string
	Value float64
	Label string // what stands at its end
	Ours  bool
}

// Draw writes a chart of bars as SVG, to be read on light and dark pages. Where the
// greatest value is over a thousand times the least, their logarithms are drawn, and the
// title should say so. Values are positive.
func Draw(path, title string, bars []Bar) error {
	const (
		names, width, label = 450, 280, 70
		row                 = 24
	)
	low, high := math.Inf(1), 0.0
	for _, b := range bars {
		low, high = min(low, b.Value), max(high, b.Value)
	}
	length := func(v float64) float64 { return v / high }
	if high > 1000*low {
		length = func(v float64) float64 { return math.Log(2*v/low) / math.Log(2*high/low) }
	}
	var s bytes.Buffer
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="%s">
<style>text { fill: #24292f } .ours { fill: #0b6e4f } .other { fill: #9aa4ad } @media (prefers-color-scheme: dark) { text { fill: #d7dde3 } .ours { fill: #3fbf8f } .other { fill: #66717b } }</style>
<text x="0" y="16" font-weight="600">%s</text>
`, names+width+label, row*len(bars)+36, html.EscapeString(title), html.EscapeString(title))
	for i, b := range bars {
		class := "other"
		if b.Ours {
			class = "ours"
		}
		y, w := 30+row*i, max(1, length(b.Value)*width)
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text><rect class="%s" x="%d" y="%d" width="%.0f" height="16"/><text x="%.0f" y="%d">%s</text>`+"\n",
			names-8, y+13, html.EscapeString(b.Name), class, names, y, w, names+w+6, y+13, html.EscapeString(b.Label))
	}
	s.WriteString("</svg>\n")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, s.Bytes(), 0o644)
}
