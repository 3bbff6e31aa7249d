package hapax

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Code is a stable, machine-readable name of an error's cause. Every protocol
// carries it; codes never change their meaning.
type Code string

// An Error is a sentinel: one cause with one stable code. Match it with
// errors.Is; what callers get wraps it with the details.
//
// The causes that the library has are [ErrInvalidArgument] and those listed with it.
// Package strategy has those of strategies and plugins, package api those of a server
// that its clients know.
type Error struct {
	code      Code
	text      string
	transient bool
}

// prefix begins the text of every error.
const prefix = "hapax: "

// Error returns the sentence that describes the cause.
func (e *Error) Error() string { return prefix + e.text }

// Code returns the stable code of the cause.
func (e *Error) Code() Code { return e.code }

// codes holds every sentinel by its code.
var codes = map[Code]*Error{}

// NewError makes the sentinel of a cause that is not the library's: packages strategy
// and api declare theirs with it. Where the cause is transient, asking again may help
// without anybody's doing. It panics if the code is taken.
func NewError(code Code, text string, transient bool) *Error {
	if _, taken := codes[code]; taken {
		panic("hapax: error code used twice: " + string(code))
	}
	e := &Error{code: code, text: text, transient: transient}
	codes[code] = e
	return e
}

func lasting(code Code, text string) *Error { return NewError(code, text, false) }

func passing(code Code, text string) *Error { return NewError(code, text, true) }

// The causes of errors, grouped by when they occur.
var (
	// Bad input. Nothing was issued and nothing changed.
	ErrInvalidArgument = lasting("invalid_argument", "an argument is out of range")
	ErrInvalidTag      = lasting("invalid_tag", "a tag name is valid UTF-8 of 1 to 128 bytes without control or invisible characters")
	ErrInvalidLayout   = lasting("invalid_layout", "the layout cannot be used")
	ErrInvalidID       = lasting("invalid_id", "the text or number is not an ID")
	ErrFieldRange      = lasting("field_range", "a field's value does not fit its layout")

	// Tags and pools.
	ErrTagNotFound    = lasting("tag_not_found", "the tag does not exist")
	ErrTagDeleted     = lasting("tag_deleted", "the tag was deleted; create it explicitly to resume above its mark")
	ErrTagExists      = lasting("tag_exists", "the tag exists already")
	ErrPoolNotFound   = lasting("pool_not_found", "the worker pool does not exist")
	ErrKindMismatch   = lasting("kind_mismatch", "the tag is frozen as another kind")
	ErrPoolDeleted    = lasting("pool_deleted", "the pool was deleted; create it explicitly, with the layout it had")
	ErrLayoutMismatch = lasting("layout_mismatch", "the pool is frozen with another layout, unit or epoch")
	ErrLineExhausted  = lasting("line_exhausted", "no numbers are left on the line")
	ErrTimeExhausted  = lasting("time_exhausted", "the layout's time bits are used up")

	// Waiting. They come joined with the error of the context that ended the wait.
	ErrTickExhausted = passing("tick_exhausted", "every number up to the allowed lead over the clock is issued")
	ErrRefillPending = passing("refill_pending", "the next grant has not arrived yet")
	ErrNoWorker      = passing("no_worker", "every worker ID of the pool is in use")

	// Workers and clocks.
	ErrLeaseLost      = passing("lease_lost", "the lease or the segment is no longer the caller's")
	ErrWorkerPoisoned = lasting("worker_poisoned", "the worker's mark lies absurdly far beyond the clock")
	ErrClockRollback  = lasting("clock_rollback", "the clock went back and the issuer is set to refuse")
	ErrClockSkew      = lasting("clock_skew", "the local clock and the store's differ too much")

	// Stores.
	ErrStoreUnavailable = passing("store_unavailable", "the store cannot be reached or did not answer in time")
	ErrStoreLocked      = lasting("store_locked", "another process has the store open")
	ErrStoreCopied      = lasting("store_copied", "the store's files were copied or moved to another machine; see hapax adopt")
	ErrStoreCorrupt     = lasting("store_corrupt", "the store's data cannot be understood")
	ErrStoreReplaced    = lasting("store_replaced", "the store is not the one known to this node; see hapax status")
	ErrStoreRolledBack  = lasting("store_rolled_back", "the store is behind what was used; see hapax status")
	ErrStoreRetired     = lasting("store_retired", "the store was copied elsewhere, and is used no more")
	ErrFenced           = lasting("fenced", "a fence stands in the store, which went back: nothing is granted until it is healed; see hapax status")
	ErrStoreUnsafe      = lasting("store_unsafe", "the store may lose what it acknowledged")
	ErrWitnessFailed    = passing("witness_failed", "the witness file of this node cannot be read or written, so that nothing can be granted")
	ErrNotSupported     = lasting("not_supported", "the store does not support this")

	// Issuing and serving.
	ErrClosed   = lasting("closed", "the issuer or store is closed")
	ErrInternal = lasting("internal", "an internal error")
)

// CodeOf returns the code of the first sentinel in err's tree: "" for nil, and
// the code of [ErrInternal] for an error that carries none.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.code
	}
	return ErrInternal.code
}

// Message returns what an error says in one line, without the prefix "hapax: " that errors
// of this module begin with, also where they stand in others. Drivers say what each address answered in a line of its own,
// and the same of an address that they tried twice.
func Message(err error) string {
	text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), prefix), ": "+prefix, ": ")
	if !strings.Contains(text, "\n") {
		return text
	}
	var line strings.Builder
	before := ""
	for part := range strings.SplitSeq(text, "\n") {
		part = strings.TrimPrefix(strings.TrimSpace(part), prefix)
		if part == "" || part == before {
			continue
		}
		switch {
		case before == "":
		case strings.HasSuffix(before, ":"):
			line.WriteString(" ")
		default:
			line.WriteString("; ")
		}
		line.WriteString(part)
		before = part
	}
	return line.String()
}

// IsTransient reports whether asking again may help without anybody's doing: the
// store may come back, a tick pass, a worker ID or a quota become free.
func IsTransient(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.transient
}

// StoreError returns what a call on a store returned as an error of the library: one
// without a sentinel is no answer of the store, and matches [ErrStoreUnavailable].
func StoreError(err error) error {
	if err != nil && CodeOf(err) == ErrInternal.code {
		return fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
	}
	return err
}

// Backoff returns how long to wait after so many failures in a row: a random time
// around 5 ms, which doubles with each further one, up to 650 ms. So many nodes do
// not come back at once, and within a second of the store.
func Backoff(failures int) time.Duration {
	if failures < 1 {
		return 0
	}
	// Bounded before the shift: retryDelay passes the highest number for the longest wait.
	d := min(firstBackoff<<min(failures-1, 10), maxBackoff)
	return d/2 + time.Duration(randomN(int64(d)))
}

const (
	firstBackoff = 5 * time.Millisecond
	maxBackoff   = 650 * time.Millisecond
)

// ErrorOf returns the sentinel with the given code, or nil if there is none.
func ErrorOf(code Code) *Error { return codes[code] }

// Codes returns every code, sorted.
func Codes() []Code { return slices.Sorted(maps.Keys(codes)) }

// A ValueError tells which argument was refused, and what is allowed. Where the value
// may be a secret, or is too long to be repeated, Value is a description of it in
// parentheses, such as "(not shown)".
type ValueError struct {
	Field   string // the argument, as the caller knows it
	Value   any    // what was given; "" if nothing was
	Allowed string // what would have been accepted
	Err     error  // the sentinel
}

func (e *ValueError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("hapax: missing %s: want %s", e.Field, e.Allowed)
	}
	// Quoted and cut: a value may be a stranger's, with line breaks, and ends in logs and terminals.
	v := fmt.Sprintf("%v", e.Value)
	if s, ok := e.Value.(string); ok && !isDescription(s) {
		v = fmt.Sprintf("%.140q", s)
	}
	return fmt.Sprintf("hapax: invalid %s %s: want %s", e.Field, v, e.Allowed)
}

// isDescription reports whether a text stands in parentheses and can be shown as it is.
func isDescription(s string) bool {
	// Anybody can send a value in parentheses: it is shown bare only where quoting would change nothing.
	return strings.HasPrefix(s, "(") && strings.HasSuffix(s, ")") && len(s) <= 140 && strconv.Quote(s) == `"`+s+`"`
}

// Unwrap returns the sentinel.
func (e *ValueError) Unwrap() error { return e.Err }

// A NoWorkerError tells why no worker ID could be had, and when to ask again.
type NoWorkerError struct {
	Pool     string
	Size     int64     // how many worker IDs the caller may use
	NextFree time.Time // when the next one frees up, as far as is known; may be zero
}

func (e *NoWorkerError) Error() string {
	s := fmt.Sprintf("hapax: all %d worker IDs of pool %q are in use", e.Size, e.Pool)
	if !e.NextFree.IsZero() {
		s += "; the next one frees up at " + e.NextFree.UTC().Format(time.RFC3339Nano)
	}
	return s
}

// Unwrap returns [ErrNoWorker].
func (e *NoWorkerError) Unwrap() error { return ErrNoWorker }

// A WaitError is returned when a call's context ended while it waited. It
// matches both the cause of the wait and the context's error.
type WaitError struct {
	Cause   error // what was waited for
	Context error // why the wait ended
}

func (e *WaitError) Error() string { return e.Cause.Error() + " (" + e.Context.Error() + ")" }

// Unwrap returns the cause and the context's error.
func (e *WaitError) Unwrap() []error { return []error{e.Cause, e.Context} }

// waitError reports that ctx ended while waiting for cause.
func waitError(ctx context.Context, cause error) error {
	return &WaitError{Cause: cause, Context: context.Cause(ctx)}
}
