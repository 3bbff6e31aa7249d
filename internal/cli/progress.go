package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax/internal/audit"
)

// A progressBar keeps one line of a terminal up to date.
type progressBar struct {
	w     io.Writer // nil: no terminal
	width int       // of the line on the terminal
}

func newProgressBar(w io.Writer) *progressBar {
	if !isTerminal(w) {
		return &progressBar{}
	}
	return &progressBar{w: w}
}

func (b *progressBar) update(p audit.Progress) {
	if b.w == nil {
		return
	}
	text := progressLine(p)
	fmt.Fprintf(b.w, "\r%-*s", b.width, text)
	b.width = max(b.width, len(text))
}

// clear leaves an empty line.
func (b *progressBar) clear() {
	if b.w != nil && b.width > 0 {
		fmt.Fprintf(b.w, "\r%*s\r", b.width, "")
	}
}

// barWidth is how many characters the bar itself takes.
const barWidth = 20

// progressLine tells the phase, how much of it is done, the rate and the time
// left.
func progressLine(p audit.Progress) string {
	rate, unit := float64(p.Numbers), "numbers/s"
	switch p.Phase {
	case "merging":
		rate = float64(p.Done)
	case "comparing", "moving":
		rate, unit = float64(p.Done), "/s"
	case "locating":
		rate, unit = float64(p.Done), "B/s"
	}
	seconds := max(p.Elapsed.Seconds(), 1e-3)
	text := p.Phase + " "
	var left string
	if p.Total > 0 {
		done := min(float64(p.Done)/float64(p.Total), 1)
		full := int(done * barWidth)
		text += "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "] " +
			strconv.Itoa(int(100*done)) + " %, "
		if done > 0 && done < 1 {
			left = ", " + (time.Duration(seconds*(1-done)/done*float64(time.Second)).Round(time.Second) + time.Second).String() + " left"
		}
	} else if p.Phase == "reading" {
		text += short(float64(p.Numbers)) + "numbers, "
	}
	return text + short(rate/seconds) + unit + left
}

// short writes a number with a unit, and the space that goes before the next word.
func short(v float64) string {
	for _, unit := range []struct {
		value float64
		name  string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= unit.value {
			return strconv.FormatFloat(v/unit.value, 'f', 1, 64) + " " + unit.name + " "
		}
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + " "
}
