package console

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/signals"
)

// A Log remembers the lines that are worth a look: warnings, errors, alarms that
// were raised and cleared, and what administrators did. It is a slog.Handler around
// another one.
type Log struct {
	slog.Handler

	attrs string // of With, written out
	group string
	kept  *entries
}

// An Entry is one record.
type Entry struct {
	At    time.Time `json:"at"`
	Level string    `json:"level"`
	Audit bool      `json:"audit,omitempty"` // of an act
	Alarm string    `json:"alarm,omitempty"` // that was raised or cleared
	Text  string    `json:"text"`
	About string    `json:"about,omitempty"` // the attributes, as key=value
	See   string    `json:"see,omitempty"`   // where the runbook tells of it

	Times int `json:"times,omitempty"` // that it was logged, the last time at At; 0 stands for 1

	// Subject is the tag or pool that the entry is about, or the subject of an alarm.
	Subject string `json:"subject,omitempty"`
	Pool    bool   `json:"pool,omitempty"` // the subject is one

	Node string `json:"-"`
	Link string `json:"-"` // to the page of the subject
}

// subject returns the link to the page about an entry's subject; empty if there is none.
func (e *Entry) subject(nodes []nodeView) string {
	switch {
	case e.Subject == "":
		return ""
	case e.Alarm != "":
		return aboutLink(nodes, e.Alarm, e.Subject)
	case e.Pool:
		return pageOf(api.KindPool, e.Subject)
	}
	return pageOf(api.KindTag, e.Subject)
}

// Limits on its memory.
const (
	maxKept  = 300
	maxAbout = 500 // bytes of an entry
)

type entries struct {
	mu  sync.Mutex // guards all
	all []Entry    // oldest first
}

// NewLog returns a handler that passes on all records to h.
func NewLog(h slog.Handler) *Log { return &Log{Handler: h, kept: &entries{}} }

// Enabled implements slog.Handler. What administrators do, and that an alarm was cleared,
// is remembered at any level of the log.
func (l *Log) Enabled(ctx context.Context, level slog.Level) bool {
	return l.group == "audit" || level >= slog.LevelInfo || l.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l *Log) Handle(ctx context.Context, r slog.Record) error {
	e := Entry{At: r.Time, Level: strings.ToLower(r.Level.String()), Audit: l.group == "audit", Text: r.Message}
	var about strings.Builder
	about.WriteString(l.attrs)
	code := ""
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "code":
			code = a.Value.String()
		case "alarm":
			e.Alarm = a.Value.String()
		case "tag", "about":
			e.Subject, e.Pool = a.Value.String(), false
		case "pool":
			// A tag, or what an alarm is about, says more than the pool, in whatever order they come.
			if e.Subject == "" {
				e.Subject, e.Pool = a.Value.String(), true
			}
		case "see":
			e.See = a.Value.String()
			return true
		}
		if about.Len() < maxAbout {
			write(&about, a)
		}
		return true
	})
	if len(e.Subject) > hapax.MaxTagBytes {
		e.Subject = "" // of no tag or pool
	}
	if e.See = cmp.Or(e.See, signals.SeeLine(r.Message, code)); r.Level < slog.LevelWarn {
		e.See = "" // of a success there is nothing to look up
	}
	if e.Audit || e.Alarm != "" || r.Level >= slog.LevelWarn {
		if e.About = about.String(); len(e.About) > maxAbout {
			e.About = strings.ToValidUTF8(e.About[:maxAbout], "") + "…"
		}
		l.kept.add(e)
	}
	if !l.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

func write(b *strings.Builder, a slog.Attr) {
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	fmt.Fprintf(b, "%s=%v", a.Key, a.Value)
}

// WithAttrs implements slog.Handler.
func (l *Log) WithAttrs(attrs []slog.Attr) slog.Handler {
	var b strings.Builder
	b.WriteString(l.attrs)
	for _, a := range attrs {
		write(&b, a)
	}
	return &Log{l.Handler.WithAttrs(attrs), b.String(), l.group, l.kept}
}

// WithGroup implements slog.Handler.
func (l *Log) WithGroup(name string) slog.Handler {
	return &Log{l.Handler.WithGroup(name), l.attrs, name, l.kept}
}

// sameWithin is how many of the newest entries are looked through for one that says the
// same: trouble that goes on would leave no room for anything else.
const sameWithin = 10

func (e *entries) add(entry Entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := len(e.all) - 1; i >= max(0, len(e.all)-sameWithin); i-- {
		// Acts are listed one by one, however often they are repeated.
		if !entry.Audit && entry.repeats(&e.all[i]) {
			entry.Times = max(e.all[i].Times, 1) + 1
			e.all = slices.Delete(e.all, i, i+1)
			break
		}
	}
	if len(e.all) >= maxKept {
		e.all = append(e.all[:0], e.all[len(e.all)-maxKept+1:]...)
	}
	e.all = append(e.all, entry)
}

// repeats reports whether an entry says what an older one says.
func (e *Entry) repeats(old *Entry) bool {
	return e.Text == old.Text && e.About == old.About && e.Level == old.Level && e.Audit == old.Audit
}

// last returns up to most entries, the newest first.
func (l *Log) last(most int) []Entry {
	if l == nil {
		return nil
	}
	l.kept.mu.Lock()
	defer l.kept.mu.Unlock()
	all := slices.Clone(l.kept.all[max(0, len(l.kept.all)-most):])
	slices.Reverse(all)
	return all
}
