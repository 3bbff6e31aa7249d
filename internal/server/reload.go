package server

import (
	"context"
	"os"
	"time"
)

// watch puts changed certificates into effect, and with every signal those and the
// tokens of the configuration, until the context ends.
func (s *server) watch(ctx context.Context, signals <-chan os.Signal) {
	var ticks <-chan time.Time
	if s.certs != nil {
		ticker := time.NewTicker(certificatesCheck)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			s.certs.check(false)
		case <-signals:
			if s.certs != nil {
				s.certs.check(true)
			}
			s.readTokens()
		}
	}
}

// readTokens reads the configuration anew and puts its tokens into effect. What
// cannot be used changes nothing.
func (s *server) readTokens() {
	if s.reload == nil {
		return
	}
	c, err := s.reload()
	if err == nil && len(c.Tokens)+len(s.config.Tokens) == 0 {
		return
	}
	if err == nil {
		err = s.policy.Replace(c.Tokens)
	}
	if err != nil {
		s.log.Warn("the tokens cannot be used; those in use stay", "err", err)
		return
	}
	s.log.Info("tokens read", "tokens", len(c.Tokens))
}
