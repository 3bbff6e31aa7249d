package server

import (
	"io"
	"log/slog"
	"os"
)

// newLogger returns a logger to w as the configuration has it.
func newLogger(c Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // Load allows no other names
	}
	opts := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "text" || c.LogFormat == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
