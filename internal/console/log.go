package console

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Log remembers what is worth a look of what is logged: warnings, errors, and what
// administrators did. It is a slog.Handler around another one.
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
	Audit bool      `json:"audit,omitempty"` // of what somebody did
	Text  string    `json:"text"`
	About string    `json:"about,omitempty"` // the attributes, as key=value
	Node  string    `json:"-"`
}

// Limits on what is remembered.
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

// Enabled implements slog.Handler. What administrators do is remembered at any level of
// the log.
func (l *Log) Enabled(ctx context.Context, level slog.Level) bool {
	return l.group == "audit" || level >= slog.LevelWarn || l.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l *Log) Handle(ctx context.Context, r slog.Record) error {
	if audit := l.group == "audit"; audit || r.Level >= slog.LevelWarn {
		var about strings.Builder
		about.WriteString(l.attrs)
		r.Attrs(func(a slog.Attr) bool {
			write(&about, a)
			return about.Len() < maxAbout
		})
		text := about.String()
		if len(text) > maxAbout {
			text = strings.ToValidUTF8(text[:maxAbout], "") + "…"
		}
		l.kept.add(Entry{At: r.Time, Level: strings.ToLower(r.Level.String()), Audit: audit, Text: r.Message, About: text})
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

func (e *entries) add(entry Entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.all) >= maxKept {
		e.all = append(e.all[:0], e.all[len(e.all)-maxKept+1:]...)
	}
	e.all = append(e.all, entry)
}

// last returns up to so many entries, the newest first.
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
