package respapi

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/strategy"
)

func (c *conn) incr(args [][]byte) { c.incrRun(args[1], nil, nil) }

// incrRun answers an INCR of the tag, and as many of the frames after it as are
// the same, with numbers taken at once. It returns how many it answered.
func (c *conn) incrRun(tag, frame, after []byte) int {
	run := 1
	// The same bytes are the same command: they need not be read once more.
	for most := min(maxRun, c.srv.svc.MaxCount()); run < most && len(frame) > 0 && bytes.HasPrefix(after, frame); run++ {
		after = after[len(frame):]
	}
	if run == 1 {
		id, err := c.srv.svc.NextBytes(c.context(), tag)
		if err != nil {
			c.failWith(err)
			return 1
		}
		c.number(int64(id))
		c.issued(c.tagName(tag), id)
		return 1
	}
	ids := c.b.ids[:run]
	n, err := c.srv.svc.NextN(c.context(), c.tagName(tag), ids)
	_, limited := errors.AsType[*auth.LimitError](err)
	if limited || n == 0 && errors.Is(err, strategy.ErrRejected) { // not all of them; perhaps some
		for range run {
			c.incrRun(tag, nil, nil)
		}
		return run
	}
	for _, id := range ids[:n] {
		c.number(int64(id))
	}
	if n > 0 {
		c.issued(c.tag, ids[n-1])
	}
	if err != nil { // they all waited for the same
		for ; n < run; n++ {
			c.failWith(err)
		}
	}
	return run
}

// tagName returns the name in the buffer as a string, which is kept for the next
// command.
func (c *conn) tagName(tag []byte) string {
	if string(tag) != c.tag {
		c.tag, c.last = string(tag), nil
	}
	return c.tag
}

// issued notes a number, for GET.
func (c *conn) issued(tag string, id hapax.ID) {
	if tag != c.tag || c.last == nil {
		c.tag, c.last = tag, c.srv.last.cell(tag)
	}
	c.last.Store(int64(id))
}

func (c *conn) incrBy(args [][]byte) {
	n, err := strconv.ParseInt(string(args[2]), 10, 64)
	if err != nil {
		c.fail(errNotInteger)
		return
	}
	if n == 1 { // what redis-py sends for INCR; a snowflake tag has one number, too
		c.incrRun(args[1], nil, nil)
		return
	}
	tag := c.tagName(args[1])
	g, err := c.srv.svc.Reserve(c.context(), tag, n)
	if err != nil {
		c.failWith(err)
		return
	}
	c.number(g.Hi - 1)
	c.issued(tag, hapax.ID(g.Hi-1))
}

func (c *conn) get(args [][]byte) {
	tag := string(args[1])
	if err := hapax.ValidateName("tag", tag); err != nil {
		c.failWith(err)
		return
	}
	id, ok := c.srv.svc.Last(tag)
	if !ok {
		id, ok = c.srv.last.get(tag)
	}
	if !ok {
		c.b.out = appendNull(c.b.out, c.resp3)
		return
	}
	c.bulk(id.String())
}

// options reads pairs of a name and a value behind a command's own arguments. It
// returns false, and has answered, if they are not among the given ones.
func (c *conn) options(args [][]byte, known map[string]*[]byte) bool {
	for ; len(args) >= 2; args = args[2:] {
		into := known[string(bytes.ToUpper(args[0]))]
		if into == nil || *into != nil {
			break
		}
		*into = args[1]
	}
	if len(args) > 0 {
		c.fail(errSyntax + ": HAPAX.TAGS [AFTER name] [COUNT n]")
	}
	return len(args) == 0
}

// count reads a COUNT from 1 to most. It returns false, and has answered, if it is
// none.
func (c *conn) count(text []byte, most int) (int, bool) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		c.fail(errNotInteger)
		return 0, false
	}
	if n < 1 || n > int64(most) {
		c.failWith(&hapax.ValueError{Field: "COUNT", Value: n, Allowed: fmt.Sprintf("1 to %d", most), Err: hapax.ErrInvalidArgument})
		return 0, false
	}
	return int(n), true
}

// next answers HAPAX.NEXT tag [COUNT n] [TEXT|INT].
func (c *conn) next(args [][]byte) {
	var count, form []byte
	for rest := args[2:]; len(rest) > 0; {
		switch word := rest[0]; {
		case bytes.EqualFold(word, []byte("COUNT")) && len(rest) > 1 && count == nil:
			count, rest = rest[1], rest[2:]
		case (bytes.EqualFold(word, []byte("TEXT")) || bytes.EqualFold(word, []byte("INT"))) && form == nil:
			form, rest = word, rest[1:]
		default:
			c.fail(errSyntax + ": HAPAX.NEXT tag [COUNT n] [TEXT|INT]")
			return
		}
	}
	n := 1
	if count != nil {
		var ok bool
		if n, ok = c.count(count, c.srv.svc.MaxCount()); !ok {
			return
		}
	}
	tag := c.tagName(args[1])
	ids := make([]hapax.ID, n)
	if _, err := c.srv.svc.NextN(c.context(), tag, ids); err != nil {
		c.failWith(err) // what was issued before is a gap
		return
	}
	// All numbers of a reply have one form.
	text := slices.ContainsFunc(ids, func(id hapax.ID) bool { return !isSafe(int64(id)) })
	if form != nil {
		text = bytes.EqualFold(form, []byte("TEXT"))
	}
	if count != nil {
		c.b.out = appendArray(c.b.out, n)
	}
	for _, id := range ids {
		c.b.out = appendNumber(c.b.out, int64(id), text)
		if len(c.b.out) >= maxUnsent {
			c.flush()
		}
	}
	c.issued(tag, ids[n-1])
}

func (c *conn) parseID(args [][]byte) {
	if len(args) > 3 {
		c.fail(wrongArgs("hapax.parse"))
		return
	}
	id, err := hapax.ParseID(string(args[1]))
	if err != nil {
		c.failWith(err)
		return
	}
	layout := ""
	if len(args) == 3 {
		layout = string(args[2])
	}
	p, err := c.srv.svc.Parse(id, layout)
	if err != nil {
		c.failWith(err)
		return
	}
	out := appendMap(c.b.out, 4, c.resp3)
	out = appendBulk(out, "id")
	out = appendNumber(out, int64(p.ID), !isSafe(int64(p.ID)))
	out = appendBulk(out, "layout")
	out = appendBulk(out, p.Layout)
	out = appendBulk(out, "time")
	out = appendBulk(out, p.Time.Format(time.RFC3339Nano))
	out = appendBulk(out, "fields")
	out = appendMap(out, len(p.Fields), c.resp3)
	for _, f := range p.Fields {
		out = appendBulk(out, f.Name)
		out = appendNumber(out, f.Value, !isSafe(f.Value))
	}
	c.b.out = out
}

func (c *conn) tags(args [][]byte) {
	var after, count []byte
	if !c.options(args[1:], map[string]*[]byte{"AFTER": &after, "COUNT": &count}) {
		return
	}
	want := service.MaxPage
	if count != nil {
		var ok bool
		if want, ok = c.count(count, service.MaxPage); !ok {
			return
		}
	}
	names, err := c.liveTags(string(after), want)
	if err != nil {
		c.failWith(err)
		return
	}
	c.strings(names...)
}

// liveTags returns up to want names that come after the given one. Tombstones do
// not count.
func (c *conn) liveTags(after string, want int) ([]string, error) {
	var names []string
	for {
		page, err := c.srv.svc.Tags(c.client, after, service.MaxPage)
		if err != nil {
			return nil, err
		}
		for _, t := range page {
			if !t.Deleted && len(names) < want {
				names = append(names, t.Name)
			}
		}
		if len(names) == want || len(page) < service.MaxPage {
			return names, nil
		}
		after = page[len(page)-1].Name
	}
}
