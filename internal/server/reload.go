package server

import (
	"context"
	"errors"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
)

// watch puts changed certificates into effect, and with every signal those and
// the configuration, until the context ends.
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
			s.readConfig()
		}
	}
}

// readConfig reads the configuration anew and puts into effect what can change while
// the server runs: the tokens and the level of the log. It names the other settings that
// have changed. A configuration that cannot be used changes nothing.
func (s *server) readConfig() {
	if s.reload == nil {
		return
	}
	c, err := s.reload()
	// The tokens first: a configuration that cannot be used changes nothing at all.
	if err == nil && len(c.Tokens)+len(s.config.Tokens) > 0 {
		err = s.policy.Replace(c.Tokens)
	}
	if err != nil {
		// Nothing of the file is shown: what stands at a wrong place may be a secret.
		setting := settingOf(err)
		what := "the file"
		if setting != "" {
			what = "the setting " + setting
		}
		s.sights.configRead(what + " cannot be used; the settings in use stay; hapax serve --print-config with the same configuration says why")
		s.log.Warn("the configuration cannot be used; the tokens and settings in use stay", "setting", setting, "do", "hapax serve --print-config with the same configuration says why")
		return
	}
	s.sights.configRead("")
	s.level.Set(levelOf(c))
	s.log.Info("configuration read", "tokens", len(c.Tokens), "log_level", c.LogLevel)
	c.fitFiles(s.log) // as at the start
	if later := s.config.changed(c); len(later) > 0 {
		s.log.Warn("settings have changed that need a restart", "settings", strings.Join(later, ", "))
	}
}

// settingOf returns which setting an error is about; empty where it is not known.
func settingOf(err error) string {
	about := ""
	if v, ok := errors.AsType[*hapax.ValueError](err); ok {
		about = v.Field
	} else if c, ok := errors.AsType[*mount.ConfigError](err); ok {
		about = c.Text
	}
	about, _, _ = strings.Cut(strings.TrimPrefix(about, "name under "), ".")
	about, _, _ = strings.Cut(about, ":")
	for _, s := range settings {
		if about == s.Name || about == "--"+s.Flag() || about == s.Env() {
			return s.Name
		}
	}
	return ""
}

// changed lists the settings that another configuration has otherwise, but for those
// that a reload puts into effect.
func (c *Config) changed(to Config) (names []string) {
	for _, s := range settings {
		if s.Name == tokensKey || s.Name == "log_level" {
			continue
		}
		same := reflect.DeepEqual(s.get(c), s.get(&to))
		switch s.Name {
		case keysKey:
			same = same && reflect.DeepEqual(c.keys, to.keys)
		case "store_password_file":
			same = same && c.storePassword == to.storePassword
		}
		if !same {
			names = append(names, s.Name)
		}
	}
	return names
}
