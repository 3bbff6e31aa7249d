package plan

import (
	"errors"
	"fmt"

	"github.com/hapax-id/hapax"
)

// A halfSpanError is one end of a span without the other.
type halfSpanError struct{}

func (halfSpanError) Error() string {
	return "hapax: --min and --max belong together: the smallest and the largest number in use"
}

func (halfSpanError) Unwrap() error { return hapax.ErrInvalidArgument }

// ParseUsed reads the numbers in use, as commands are told them: the smallest and the
// largest, or nil for neither. Errors match hapax.ErrInvalidArgument or hapax.ErrInvalidID.
func ParseUsed(least, most string) (*Span, error) {
	switch {
	case least == "" && most == "":
		return nil, nil
	case least == "" || most == "":
		return nil, halfSpanError{}
	}
	var span Span
	var err, err2 error
	span.Min, err = hapax.ParseID(least)
	span.Max, err2 = hapax.ParseID(most)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	if span.Min > span.Max {
		return nil, &hapax.ValueError{Field: "min", Value: span.Min, Allowed: fmt.Sprintf("up to max, which is %d", span.Max), Err: hapax.ErrInvalidArgument}
	}
	return &span, nil
}
