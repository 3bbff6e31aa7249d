package moves

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
)

// An Account says what becomes of a foreign system's settings, so that nothing is
// lost unseen: each setting is carried over, or noted, or refused. The zero value is
// ready to use.
type Account struct {
	notes   []note
	refused []string
}

// A note is one text about settings.
type note struct {
	text  string
	names []string
}

// The texts of notes that several systems have.
const (
	Idle      = "Without effect here"
	IdlePool  = "Without effect here, where connections are hapax's own"
	Elsewhere = "Not read, of something else"
	Filled    = "Put in the place of ${…}"
	Outside   = "Not in the file, but in what Java was started with, so that it is to be given beside the URL"
	Hidden    = "Read, and not shown"
)

// Note notes what there is to say about settings.
func (a *Account) Note(text string, names ...string) {
	at := slices.IndexFunc(a.notes, func(n note) bool { return n.text == text })
	if at < 0 {
		at = len(a.notes)
		a.notes = append(a.notes, note{text: text})
	}
	for _, name := range names {
		if !slices.Contains(a.notes[at].names, name) {
			a.notes[at].names = append(a.notes[at].names, name)
		}
	}
}

// Refusef notes why a setting cannot be carried over, and what to do.
func (a *Account) Refusef(name, format string, args ...any) {
	a.refused = append(a.refused, name+": "+fmt.Sprintf(format, args...))
}

// Unknown refuses a setting that nobody here knows.
func (a *Account) Unknown(name, allowed string) {
	a.Refusef(name, "not known here; known are %s: take it out if the numbers do not depend on it", allowed)
}

// Err returns all that was refused.
func (a *Account) Err() error {
	if len(a.refused) == 0 {
		return nil
	}
	return fmt.Errorf("%w: what the file says cannot all be carried over:\n  %s", hapax.ErrInvalidArgument, strings.Join(a.refused, "\n  "))
}

// Beside returns an error together with all that was refused, which may be its cause.
func (a *Account) Beside(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(a.Err(), err)
}

// Comments returns the notes as comments of YAML.
func (a *Account) Comments() string {
	var b strings.Builder
	for _, n := range a.notes {
		b.WriteString("# " + n.text)
		for i, name := range n.names {
			b.WriteString([]string{": ", ", "}[min(i, 1)] + printable(name))
		}
		b.WriteString(".\n")
	}
	return b.String()
}

// printable returns a name such that it cannot end the comment that it is in.
func printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 }) {
		return Quote(name)
	}
	return name
}

// Settings are those of a properties file, each with its account.
type Settings struct {
	*Account

	placeholders Placeholders
	taken        map[string]bool
}

// NewSettings returns the settings of a properties file, which the account is of.
func NewSettings(a *Account, values map[string]string) *Settings {
	return &Settings{a, Placeholders{values, map[string]bool{}}, map[string]bool{}}
}

// Value returns a setting without taking it, with others in the place of their names.
func (s *Settings) Value(name string) string {
	return s.placeholders.Fill(s.placeholders.Values[name])
}

// Take takes a setting that has several names: the value of the first that is given, and
// which that is. Others must not say something else. Other settings are put in the place
// of their names; a placeholder that is none of theirs is refused.
func (s *Settings) Take(names ...string) (name, value string) {
	for _, n := range names {
		v := s.Value(n)
		if open := Unfilled(v); open != "" {
			s.Refusef(n, unfilled, open)
			v = ""
		}
		// Also where it is refused or empty: Finish would refuse it once more, as one not known.
		s.taken[n] = true
		switch {
		case v == "" || v == value:
		case value == "":
			name, value = n, v
		default:
			s.Refusef(n, "%s says something else: give one of them", name)
		}
	}
	return cmp.Or(name, names[0]), value
}

// unfilled is why a value with a placeholder is refused.
const unfilled = "it depends on what Java was started with: the file does not say what %s is: write the value in its place"

// TakeSecret takes a password, which is not shown. One that is not in the file is noted.
func (s *Settings) TakeSecret(names ...string) Secret {
	for _, n := range names {
		if Unfilled(s.Value(n)) != "" {
			s.Idle(Outside, n)
			return ""
		}
	}
	_, value := s.Take(names...)
	s.Idle(Hidden, names...)
	return Secret(value)
}

// Idle notes settings, as far as they are given, that have no effect.
func (s *Settings) Idle(text string, names ...string) {
	for _, n := range names {
		if _, given := s.placeholders.Values[n]; given {
			s.taken[n] = true
			s.Note(text, n)
		}
	}
}

// Left returns the names that begin with a prefix of the settings that are not accounted
// for yet.
func (s *Settings) Left(prefix string) (names []string) {
	for _, n := range slices.Sorted(maps.Keys(s.placeholders.Values)) {
		if !s.taken[n] && strings.HasPrefix(n, prefix) {
			names = append(names, n)
		}
	}
	return names
}

// Finish accounts for the settings that are left: with the prefix of the system's own
// they are refused, and others are something else's.
func (s *Settings) Finish(own, known string) error {
	for _, n := range s.Left("") {
		s.taken[n] = true
		switch {
		// Before the prefix is judged: another setting has taken it in, whatever it is called.
		case s.placeholders.Used[n]:
			s.Note(Filled, n)
		case strings.HasPrefix(n, own):
			s.Unknown(n, known)
		default:
			s.Note(Elsewhere, n)
		}
	}
	return s.Err()
}
