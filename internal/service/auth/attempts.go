package auth

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// Limits on wrong tokens. They keep whoever guesses from wearing out the server and
// its log; that nobody guesses right is due to a token's length.
const (
	attemptsAllowed = 100 // wrong tokens of an address in a window, without more ado
	attemptsWindow  = time.Minute
	attemptsDelay   = time.Second     // before the answer to each further one
	maxDelayed      = 1024            // of these at a time; others are answered at once
	maxAddresses    = 4096            // remembered; others count together
	reportEvery     = 1 * time.Second // at most
)

// attempts counts wrong tokens by address.
type attempts struct {
	delayed chan struct{}

	mu         sync.Mutex // guards the fields below
	addresses  map[netip.Prefix]*guesser
	report     func(WrongToken)
	reported   time.Time
	suppressed int
}

type guesser struct {
	ends  time.Time
	wrong int
}

// A WrongToken is news for the operator.
type WrongToken struct {
	From       string // the client's address
	Wrong      int    // wrong tokens from there, in this minute
	Suppressed int    // pieces of such news that were not told since the last one
}

func newAttempts() *attempts {
	return &attempts{addresses: map[netip.Prefix]*guesser{}, delayed: make(chan struct{}, maxDelayed)}
}

// ReportWrong has wrong tokens reported, one in a second at most.
func (p *Policy) ReportWrong(report func(WrongToken)) {
	if p == nil || p.attempts == nil {
		return
	}
	p.attempts.mu.Lock()
	defer p.attempts.mu.Unlock()
	p.attempts.report = report
}

// Who returns who the values of an Authorization header stand for or, without any, who
// the certificate of the context's connection does. ErrUnauthenticated.
func (p *Policy) Who(ctx context.Context, authorization []string) (*Caller, error) {
	if len(authorization) == 0 {
		if c := p.Certified(ConnFromContext(ctx).state()); c != nil {
			return c, c.expired()
		}
	}
	return p.Bearer(authorization)
}

// Enter is Who for a client with an address, as From is Caller.
func (p *Policy) Enter(ctx context.Context, from string, authorization []string) (*Caller, error) {
	caller, err := p.Who(ctx, authorization)
	// A request without a token guesses at none.
	if err != nil && len(authorization) > 0 {
		p.wrong(ctx, from)
	}
	return caller, err
}

// Knows reports whether a client is none of the strangers: its connection was vouched
// for, or Enter would let it in. It counts nothing.
func (p *Policy) Knows(ctx context.Context, authorization []string) bool {
	conn := ConnFromContext(ctx)
	if !p.HasTokens() || conn != nil && conn.vouched.Load() {
		return true
	}
	_, err := p.Who(ctx, authorization)
	return err == nil
}

// From is Caller for a client with an address. It counts wrong tokens: if there are
// many from there, it takes its time.
func (p *Policy) From(ctx context.Context, from, token string) (*Caller, error) {
	caller, err := p.Caller(token)
	if err != nil && token != "" {
		p.wrong(ctx, from)
	}
	return caller, err
}

// wrong counts a wrong token.
func (p *Policy) wrong(ctx context.Context, from string) {
	if p.HasTokens() && p.attempts.count(from) {
		p.attempts.wait(ctx)
	}
}

// wait takes some time, unless too many do.
func (a *attempts) wait(ctx context.Context) {
	select {
	case a.delayed <- struct{}{}:
		defer func() { <-a.delayed }()
	default:
		return
	}
	timer := time.NewTimer(attemptsDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// count notes a wrong token, and reports whether its address has shown too many.
func (a *attempts) count(from string) bool {
	now, key := time.Now(), keyOfAddress(from)
	a.mu.Lock()
	w := a.guesserLocked(key, now)
	w.wrong++
	over := w.wrong > attemptsAllowed
	news, report := WrongToken{From: from, Wrong: w.wrong, Suppressed: a.suppressed}, a.report
	if now.Sub(a.reported) < reportEvery {
		a.suppressed++
		report = nil
	} else {
		a.reported, a.suppressed = now, 0
	}
	a.mu.Unlock()
	// Without the lock: a slow log must not hold up other clients.
	if report != nil {
		report(news)
	}
	return over
}

func (a *attempts) guesserLocked(key netip.Prefix, now time.Time) *guesser {
	w := a.addresses[key]
	if w == nil {
		if len(a.addresses) >= maxAddresses {
			for k, old := range a.addresses {
				if !now.Before(old.ends) {
					delete(a.addresses, k)
				}
			}
		}
		if len(a.addresses) >= maxAddresses {
			key = netip.Prefix{} // that of all others
			w = a.addresses[key]
		}
		if w == nil {
			w = &guesser{}
			a.addresses[key] = w
		}
	}
	if !now.Before(w.ends) {
		*w = guesser{ends: now.Add(attemptsWindow)}
	}
	return w
}

// keyOfAddress returns what counts as one client: an address, or what a network of
// IPv6 gives to one. What is no address counts together.
func keyOfAddress(from string) netip.Prefix {
	at, err := netip.ParseAddrPort(from)
	if err != nil {
		return netip.Prefix{}
	}
	addr := at.Addr().Unmap().WithZone("")
	width := 32
	if addr.Is6() {
		width = 64
	}
	prefix, err := addr.Prefix(width)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}
