package codec

import (
	"errors"
	"fmt"
)

// What can be wrong; match with errors.Is.
var (
	// ErrInvalidSpec is the cause when a spec cannot be parsed, or when the
	// options lack what it needs.
	ErrInvalidSpec = errors.New("codec: invalid spec")
	// ErrInvalidText is the cause when a text is not the code of any number.
	ErrInvalidText = errors.New("codec: invalid code")
	// ErrCheck is the cause when a text has the form of a code and its check
	// characters do not fit: it was mistyped. It comes with [ErrInvalidText].
	ErrCheck = errors.New("codec: the check characters do not fit")
	// ErrRange is the cause when a number has no text in this code.
	ErrRange = errors.New("codec: number out of range")
	// ErrPeriod is the cause when a period is missing, not of this code, or
	// outside the years that the code can show.
	ErrPeriod = errors.New("codec: invalid period")
)

// A SpecError tells what is wrong with a spec. It matches [ErrInvalidSpec].
type SpecError struct {
	Pos    int    // offset in the spec in bytes, from 0; -1 if an option is at fault
	Value  string // what stands there
	Want   string // what is allowed
	Option string // the field of Options that is at fault; empty if the spec is
}

func (e *SpecError) Error() string {
	if e.Pos < 0 {
		return fmt.Sprintf("codec: invalid option %s: want %s", e.Value, e.Want)
	}
	return fmt.Sprintf("codec: invalid spec at position %d: %q: want %s", e.Pos+1, e.Value, e.Want)
}

// Unwrap returns [ErrInvalidSpec].
func (e *SpecError) Unwrap() error { return ErrInvalidSpec }

// A TextError tells where a text stops being a code. It matches [ErrInvalidText],
// and [ErrCheck] if only the check characters are at fault.
type TextError struct {
	Pos   int    // offset in the text in bytes, from 0
	Value string // what stands there, empty at the text's end
	Want  string // what a code has there
	Check bool   // only the check characters do not fit
}

func (e *TextError) Error() string {
	found := "the end"
	if e.Value != "" {
		found = fmt.Sprintf("%q", e.Value)
	}
	return fmt.Sprintf("codec: invalid code at position %d: %s: want %s", e.Pos+1, found, e.Want)
}

// Is reports whether the target is [ErrInvalidText], or [ErrCheck] where it applies.
func (e *TextError) Is(target error) bool {
	return target == ErrInvalidText || e.Check && target == ErrCheck
}

// textError describes the character of a text at an offset.
func textError(text string, pos int, want string) error {
	e := &TextError{Pos: pos, Want: want}
	if pos < len(text) {
		e.Value = text[pos : pos+1]
	}
	return e
}
