package service

import (
	"log/slog"
	"sync"

	"github.com/hapax-id/hapax"
)

// maxParted is how many stretches that are lost with a stop the log tells one by one.
const maxParted = 1000

// A Parting is what became of the numbers that a service had in hand when it was closed.
type Parting struct {
	HandedBack int64 // numbers that went back to the store
	Lost       int64 // numbers that could not, and are skipped
	Stretches  int   // in which those lie
}

// parting counts what becomes of numbers in hand from when the service is being closed.
type parting struct {
	mu    sync.Mutex // guards the fields below
	began bool
	sum   Parting
}

func (p *parting) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began = true
}

// take counts an event. It reports whether it is of the stop, and whether the log is to
// tell of it: there, each stretch that is lost counts.
func (p *parting) take(e hapax.Event) (ours, tell bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.began:
	case e.Kind == hapax.EventHandedBack:
		p.sum.HandedBack += e.Value
	case e.Kind == hapax.EventBurnt:
		p.sum.Lost += e.Value
		p.sum.Stretches++
		return true, p.sum.Stretches <= maxParted
	}
	return false, false
}

// Parting returns what became of the numbers that were in hand when Close was called.
func (s *Service) Parting() Parting {
	s.parting.mu.Lock()
	defer s.parting.mu.Unlock()
	return s.parting.sum
}

// Attrs tells of it in a line of the log.
func (p Parting) Attrs() []any {
	attrs := []any{slog.Int64("numbers_handed_back", p.HandedBack), slog.Int64("numbers_lost", p.Lost)}
	if p.Stretches > maxParted {
		attrs = append(attrs, slog.Int("lost_stretches_not_told", p.Stretches-maxParted))
	}
	return attrs
}
