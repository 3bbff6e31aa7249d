package api

import (
	"strings"
	"time"

	"github.com/hapax-id/hapax"
)

// A Plugin stands around the issuing of numbers on one server.
type Plugin struct {
	Name       string   `json:"name"`
	Order      int      `json:"order"` // smaller ones are called first
	On         bool     `json:"on"`
	Hooks      []string `json:"hooks,omitempty"`      // those that it has: Before, After, Replace, OnError
	Strategies []string `json:"strategies,omitempty"` // that it serves; none stands for all
	Tags       []string `json:"tags,omitempty"`       // likewise
	Vetoes     int64    `json:"vetoes"`               // since the server started
	Failures   int64    `json:"failures"`             // likewise
}

// Usage is what a plugin of a server has counted in windows of time. Numbers are strings
// in JSON.
type Usage struct {
	Plugin   string   `json:"plugin"`
	Tag      string   `json:"-"`                // empty where it is of all
	Caller   string   `json:"caller,omitempty"` // likewise
	Window   Window   `json:"window"`
	Current  hapax.ID `json:"current"`        // since the current window began
	Previous hapax.ID `json:"previous"`       // in the window before, where that is counted
	Limit    hapax.ID `json:"limit,omitzero"` // what a window may hold; 0 for no limit
}

// A Window is a length of time in which numbers are counted. It is written as settings
// are: 24h for 24h0m0s.
type Window time.Duration

var shortUnits = strings.NewReplacer("h0m0s", "h", "m0s", "m")

// String returns the window as settings are written.
func (w Window) String() string { return shortUnits.Replace(time.Duration(w).String()) }

// MarshalText implements encoding.TextMarshaler.
func (w Window) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *Window) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*w = Window(d)
	return err
}
