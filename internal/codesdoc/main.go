// Command codesdoc draws the plots of docs/codes.md. "go generate ./codec" runs it.
package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/codec"
)

// docs is seen from a package, where go generate runs commands.
const docs = "../docs"

func main() {
	all, err := plots()
	if err == nil {
		for name, svg := range all {
			if err = os.WriteFile(filepath.Join(docs, name), []byte(svg), 0o600); err != nil {
				break
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "codesdoc:", err)
		os.Exit(1)
	}
}

// plots returns the drawings by the names of their files.
func plots() (map[string]string, error) {
	scrambled, err := drawScrambled()
	if err != nil {
		return nil, err
	}
	lengths, err := drawLengths()
	if err != nil {
		return nil, err
	}
	return map[string]string{"codes-scrambled.svg": scrambled, "codes-lengths.svg": lengths}, nil
}

// options hold a key that is good for drawings only.
var options = codec.Options{Tag: "coupons", Keys: map[string][]byte{"k1": []byte("0123456789abcdef")}}

// Sizes in pixels.
const (
	side   = 150 // of a plot
	gap    = 20  // around plots
	header = 24  // above a plot, for its title
)

// svg is a drawing in the making. Its colours suit light and dark pages.
type svg struct{ strings.Builder }

func newSVG(width, height int, title string) *svg {
	var s svg
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" font-family="sans-serif" font-size="11" fill="#888">`+"\n", width, height)
	fmt.Fprintf(&s, "<title>%s</title>\n", title)
	return &s
}

func (s *svg) text(x, y int, anchor, text string) {
	fmt.Fprintf(s, `<text x="%d" y="%d" text-anchor="%s">%s</text>`+"\n", x, y, anchor, text)
}

func (s *svg) frame(x, y, width, height int) {
	fmt.Fprintf(s, `<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#888" stroke-width=".5"/>`+"\n", x, y, width, height)
}

func (s *svg) path(d, more string) { fmt.Fprintf(s, `<path d="%s" %s/>`+"\n", d, more) }

func (s *svg) end() string { return s.String() + "</svg>\n" }

// drawScrambled shows what becomes of 1,000 consecutive numbers: from left to
// right the numbers, upwards where among all codes of the length theirs is.
func drawScrambled() (string, error) {
	const count = 1000
	kinds := []string{"", ":reverse", ":multiply", ":feistel"}
	s := newSVG(len(kinds)*(side+gap)+gap, side+header+2*gap, "1,000 consecutive numbers as codes of three characters of 32")
	plain, err := codec.Parse("{id:3:crockford32}", codec.Options{})
	if err != nil {
		return "", err
	}
	for i, kind := range kinds {
		c, err := codec.Parse("{id:3:crockford32"+kind+"}", options)
		if err != nil {
			return "", err
		}
		x0, y0 := gap+i*(side+gap), header
		s.text(x0, y0-8, "start", "{id:3:crockford32"+kind+"}")
		s.frame(x0, y0, side, side)
		var d strings.Builder
		for id := range hapax.ID(count) {
			text, err := c.Append(nil, id)
			if err != nil {
				return "", err
			}
			place, err := plain.Decode(string(text))
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&d, "M%d %dh1", x0+int(id)*side/count, y0+side-1-int(place)*(side-1)/int(c.Max()))
		}
		s.path(d.String(), `stroke="#d33" stroke-width="1.5"`)
		s.text(x0, y0+side+14, "start", "0")
		s.text(x0+side, y0+side+14, "end", "999")
	}
	return s.end(), nil
}

// drawLengths shows how long codes are by how many numbers there are, if they
// begin with two characters and grow.
func drawLengths() (string, error) {
	const width, height, decades, longest = 480, 200, 18, 20
	s := newSVG(width+4*gap+40, height+3*gap, "length of codes by how many numbers were issued")
	x0, y0 := 2*gap, gap
	s.frame(x0, y0, width, height)
	x := func(decade float64) int { return x0 + int(decade*width/decades) }
	y := func(length int) int { return y0 + height - length*height/longest }
	for decade := 0; decade <= decades; decade += 3 {
		s.text(x(float64(decade)), y0+height+14, "middle", "10"+superscript(decade))
	}
	for length := 0; length <= longest; length += 5 {
		s.text(x0-6, y(length)+4, "end", fmt.Sprint(length))
	}
	for _, line := range []struct{ alphabet, colour string }{
		{"10", "#d33"}, {"16", "#d80"}, {"crockford32", "#080"}, {"58", "#36c"},
	} {
		c, err := codec.Parse("{id:2+:"+line.alphabet+"}", codec.Options{})
		if err != nil {
			return "", err
		}
		var d strings.Builder
		last := 0
		for step := range decades*width/decades + 1 {
			decade := float64(step) * decades / width
			text, err := c.Append(nil, hapax.ID(math.Pow(10, decade))-1)
			if err != nil {
				return "", err
			}
			if len(text) != last {
				command := fmt.Sprintf("H%dV%d", x(decade), y(len(text)))
				if last == 0 {
					command = fmt.Sprintf("M%d %d", x(decade), y(len(text)))
				}
				d.WriteString(command)
				last = len(text)
			}
		}
		fmt.Fprintf(&d, "H%d", x(decades))
		s.path(d.String(), `fill="none" stroke="`+line.colour+`" stroke-width="1.5"`)
		s.text(x(decades)+6, y(last)+4, "start", line.alphabet)
	}
	return s.end(), nil
}

// superscript writes a number in small raised digits.
func superscript(n int) string {
	const raised = "⁰¹²³⁴⁵⁶⁷⁸⁹"
	var out strings.Builder
	for _, d := range fmt.Sprint(n) {
		out.WriteRune([]rune(raised)[d-'0'])
	}
	return out.String()
}
