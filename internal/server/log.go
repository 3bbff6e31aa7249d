package server

import (
	"io"
	"log/slog"
	"os"
	"time"
)

// newLogger returns a logger to w as the configuration has it.
func newLogger(c Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // Load allows no other names
	}
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: oneForm}
	if c.LogFormat == "text" || c.LogFormat == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

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
