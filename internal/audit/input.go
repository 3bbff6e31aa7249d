package audit

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/hapax-id/hapax"
)

// blockSize is how much text is read, and handed to a worker, at a time. No line
// or record is longer.
const blockSize = 1 << 20

// A block is a piece of a file: whole lines or records, the last one ended by a
// newline.
type block struct {
	buf  []byte // room for a newline that the file lacks, and slack bytes
	text []byte // of buf, slack bytes before its end
	file int
	line int64 // the first one's, counted from 1
	form form
}

func newBlock(size int) *block { return &block{buf: make([]byte, size+1+slack)} }

// open opens a file; "-" is standard input. What begins as gzip does is
// unpacked; what begins with the mark of UTF-8 loses it.
func open(name string, stdin io.Reader, read *atomic.Int64) (io.Reader, func(), error) {
	raw, closer := stdin, func() {}
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, nil, err
		}
		raw, closer = f, func() { f.Close() }
	}
	raw = &meter{raw, read}
	head, err := peek(&raw, 2)
	if err == nil && bytes.Equal(head, []byte{0x1f, 0x8b}) {
		raw, err = gzip.NewReader(raw)
	}
	if err == nil {
		if head, err = peek(&raw, 3); bytes.Equal(head, []byte("\uFEFF")) {
			raw = raw.(*peeked).rest
		}
	}
	if err != nil {
		closer()
		return nil, nil, err
	}
	return raw, closer, nil
}

// A meter counts what is read.
type meter struct {
	io.Reader
	read *atomic.Int64
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.read.Add(int64(n))
	return n, err
}

// A peeked reader gives what was looked at first, then the rest.
type peeked struct {
	io.Reader
	rest io.Reader
}

// peek returns up to n bytes that r will give, and leaves r as if nothing was
// read.
func peek(r *io.Reader, n int) ([]byte, error) {
	head := make([]byte, n)
	n, err := fill(*r, head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	head = head[:n]
	*r = &peeked{io.MultiReader(bytes.NewReader(head), *r), *r}
	return head, nil
}

// A reader cuts files into blocks.
type reader struct {
	files  []string
	only   []bool // the files to read; nil: all
	stdin  io.Reader
	form   form
	header string // the name of the column, which each file's first record tells; "": none does

	blockSize int
	read      *atomic.Int64
	free      chan *block // to fill
	full      chan *block // for the workers
	invalid   func(file int, line int64, text []byte)
	broken    func(file int, lines int64, err error) // a file that cannot be read to its end
}

// run reads all files. A file that breaks off is told to broken; an error is one
// of how the audit was asked for, or the context's.
func (r *reader) run(ctx context.Context) error {
	defer close(r.full)
	b, err := r.next(ctx)
	for i := 0; i < len(r.files) && err == nil; i++ {
		if r.only == nil || r.only[i] {
			b, err = r.runFile(ctx, i, b)
		}
	}
	return err
}

// runFile reads a file into b and the blocks that follow, and returns one to go on
// with.
func (r *reader) runFile(ctx context.Context, file int, b *block) (*block, error) {
	src, done, err := open(r.files[file], r.stdin, r.read)
	if err != nil {
		r.broken(file, 0, err)
		return b, nil
	}
	defer done()
	b.form = r.form
	var (
		n        int        // bytes of b that are carried over
		line     = int64(1) // of the first of them
		lookUp   = r.header != ""
		skipping = false // the rest of a line that was too long
	)
	for {
		var readErr error
		if n, readErr = fill(src, b.buf[:r.blockSize], n); readErr != nil {
			n = endText(b.buf, n, readErr)
		}
		text := b.buf[:n]
		start := 0
		if skipping {
			if start = bytes.IndexByte(text, '\n') + 1; start == 0 {
				start = n
			} else {
				skipping = false
				line++
			}
		}
		if lookUp && start < n {
			end := start + recordEnd(text[start:], b.form.separator)
			if end < start {
				return b, columnError(r.header, r.files[file], "which has a first record that does not end")
			}
			if b.form.column, err = columnOf(text[start:end-1], r.header, b.form, r.files[file]); err != nil {
				return b, err
			}
			line += int64(bytes.Count(text[start:end], newline))
			start, lookUp = end, false
		}
		cut := start + lastEnd(text[start:], b.form)
		if cut == start && start < n && (readErr != nil || start == 0) {
			// Too long, or in quotes that do not end. The next line is a fresh
			// start.
			r.invalid(file, line, text[start:])
			if end := bytes.IndexByte(text[start:], '\n'); end >= 0 {
				start += end + 1
				line++
			} else {
				start, skipping = n, true
			}
			cut = start
		}
		if cut == start {
			n = copy(b.buf, text[cut:])
		} else {
			after, err := r.next(ctx)
			if err != nil {
				return b, err
			}
			n = copy(after.buf, text[cut:])
			after.form = b.form
			b.file, b.line, b.text = file, line, text[start:cut]
			line += int64(bytes.Count(b.text, newline))
			r.full <- b
			b = after
		}
		if readErr != nil && n == 0 {
			if !errors.Is(readErr, io.EOF) {
				r.broken(file, line-1, readErr)
			}
			return b, nil
		}
	}
}

// next returns a block to fill.
func (r *reader) next(ctx context.Context) (*block, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case b := <-r.free:
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fill reads until the buffer, of which n bytes are in use, is full. The error is
// io.EOF at the end of the file.
func fill(src io.Reader, buf []byte, n int) (int, error) {
	for idle := 0; n < len(buf); idle++ {
		m, err := src.Read(buf[n:])
		n += m
		switch {
		case err != nil:
			return n, err
		case m > 0:
			idle = 0
		case idle == 100:
			return n, io.ErrNoProgress
		}
	}
	return n, nil
}

// endText ends the last line of a file with a newline, if it has none. Where the
// file breaks off, the beginning of a line is no number; it is left away.
func endText(buf []byte, n int, err error) int {
	switch {
	case n == 0 || buf[n-1] == '\n':
		return n
	case errors.Is(err, io.EOF):
		buf[n] = '\n'
		return n + 1
	}
	return bytes.LastIndexByte(buf[:n], '\n') + 1
}

// lastEnd returns where the last line or record that ends in the text ends.
func lastEnd(text []byte, f form) int {
	if !f.csv || bytes.IndexByte(text, '"') < 0 {
		return bytes.LastIndexByte(text, '\n') + 1
	}
	end := 0
	for {
		n := recordEnd(text[end:], f.separator)
		if n < 0 {
			return end
		}
		end += n
	}
}

// columnOf returns the place of the named column in a header.
func columnOf(header []byte, name string, f form, file string) (int, error) {
	header = bytes.TrimSuffix(header, []byte{'\r'})
	var names []string
	for i := 0; i <= len(header) && len(names) < 1<<12; {
		end := fieldEnd(header, i, f.separator)
		field := string(bytes.TrimSpace(unquote(header[i:end])))
		if field == name {
			return len(names), nil
		}
		names = append(names, field)
		i = end + 1
	}
	listed := strings.Join(names, ", ")
	if len(listed) > 200 {
		listed = listed[:200] + "…"
	}
	return 0, columnError(name, file, "whose first record is "+strconv.Quote(listed))
}

func columnError(name, file, why string) error {
	return &hapax.ValueError{
		Field: "column", Value: name, Allowed: fmt.Sprintf("a column of %s, %s; or a place from 1", file, why),
		Err: hapax.ErrInvalidArgument,
	}
}
