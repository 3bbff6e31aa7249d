package server

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/signals"
)

// levelOf returns the level that the configuration has.
func levelOf(c Config) (level slog.Level) {
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // Load allows no other names
	}
	return level
}

// newLogger returns a logger to w in the form that the configuration has.
func newLogger(c Config, w io.Writer, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: oneForm}
	if c.LogFormat == "text" || c.LogFormat == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// headed is a handler whose first line tells the version, and whose warnings say where
// the runbook tells of them. A start that fails before it has anything to log leaves
// nothing but its error.
type headed struct {
	slog.Handler

	head func(context.Context)
}

func newHeaded(h slog.Handler) headed {
	var once sync.Once
	return headed{h, func(ctx context.Context) {
		once.Do(func() {
			v := build.Read()
			slog.New(h).InfoContext(ctx, "hapax", "version", v.Version, "revision", v.Revision, "go", v.Go, "pid", os.Getpid())
		})
	}}
}

func (h headed) Handle(ctx context.Context, r slog.Record) error {
	h.head(ctx)
	if r.Level >= slog.LevelWarn && r.Message != health.AlarmRaised { // which says where by itself
		code, told := "", false
		r.Attrs(func(a slog.Attr) bool {
			switch a.Key {
			case "code":
				code = a.Value.String()
			case "see":
				told = true
			}
			return true
		})
		if see := signals.SeeLine(r.Message, code); see != "" && !told {
			r.AddAttrs(slog.String("see", see))
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h headed) WithAttrs(attrs []slog.Attr) slog.Handler {
	return headed{h.Handler.WithAttrs(attrs), h.head}
}

func (h headed) WithGroup(name string) slog.Handler { return headed{h.Handler.WithGroup(name), h.head} }

// oneForm writes every duration in the form that settings have.
func oneForm(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		d := a.Value.Duration()
		if d.Abs() > time.Second {
			d = d.Round(time.Millisecond)
		} else {
			d = d.Round(time.Microsecond)
		}
		a.Value = slog.StringValue(formatDuration(d))
	}
	return a
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
