// Package wire translates between the messages of hapax.v1 and the library's
// values and errors. Server and client share it, so that what one says is what
// the other understands: an error that the server returns matches the same
// sentinel at the client, and a *hapax.ValueError keeps its fields.
package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/strategy"
)

// statuses gives every code its status. Unavailable means that asking again, or
// another server, may help.
var statuses = map[hapax.Code]connect.Code{
	hapax.ErrInvalidArgument.Code(): connect.CodeInvalidArgument,
	hapax.ErrInvalidTag.Code():      connect.CodeInvalidArgument,
	hapax.ErrInvalidLayout.Code():   connect.CodeInvalidArgument,
	hapax.ErrInvalidID.Code():       connect.CodeInvalidArgument,
	hapax.ErrFieldRange.Code():      connect.CodeInvalidArgument,

	hapax.ErrTagNotFound.Code():    connect.CodeNotFound,
	hapax.ErrTagDeleted.Code():     connect.CodeFailedPrecondition,
	hapax.ErrPoolDeleted.Code():    connect.CodeFailedPrecondition,
	hapax.ErrTagExists.Code():      connect.CodeAlreadyExists,
	hapax.ErrPoolNotFound.Code():   connect.CodeNotFound,
	hapax.ErrKindMismatch.Code():   connect.CodeFailedPrecondition,
	hapax.ErrLayoutMismatch.Code(): connect.CodeFailedPrecondition,
	hapax.ErrLineExhausted.Code():  connect.CodeOutOfRange,
	hapax.ErrTimeExhausted.Code():  connect.CodeOutOfRange,

	hapax.ErrTickExhausted.Code(): connect.CodeUnavailable,
	hapax.ErrRefillPending.Code(): connect.CodeUnavailable,
	hapax.ErrNoWorker.Code():      connect.CodeUnavailable,

	hapax.ErrLeaseLost.Code():      connect.CodeAborted,
	hapax.ErrWorkerPoisoned.Code(): connect.CodeFailedPrecondition,
	hapax.ErrClockRollback.Code():  connect.CodeUnavailable,
	hapax.ErrClockSkew.Code():      connect.CodeUnavailable,

	hapax.ErrStoreUnavailable.Code(): connect.CodeUnavailable,
	hapax.ErrStoreLocked.Code():      connect.CodeUnavailable,
	hapax.ErrStoreCopied.Code():      connect.CodeUnavailable,
	hapax.ErrStoreCorrupt.Code():     connect.CodeDataLoss,
	hapax.ErrStoreReplaced.Code():    connect.CodeUnavailable,
	hapax.ErrStoreRetired.Code():     connect.CodeUnavailable,
	hapax.ErrStoreRolledBack.Code():  connect.CodeUnavailable,
	hapax.ErrStoreUnsafe.Code():      connect.CodeUnavailable,
	hapax.ErrFenced.Code():           connect.CodeUnavailable,
	hapax.ErrWitnessFailed.Code():    connect.CodeUnavailable,
	hapax.ErrNotSupported.Code():     connect.CodeUnimplemented,

	hapax.ErrClosed.Code():             connect.CodeUnavailable,
	strategy.ErrRejected.Code():        connect.CodePermissionDenied,
	api.ErrLimitExceeded.Code():        connect.CodeResourceExhausted,
	api.ErrFloorUnread.Code():          connect.CodeUnavailable,
	api.ErrUnauthenticated.Code():      connect.CodeUnauthenticated,
	api.ErrPermissionDenied.Code():     connect.CodePermissionDenied,
	strategy.ErrPluginFailed.Code():    connect.CodeInternal,
	strategy.ErrPluginMismatch.Code():  connect.CodeFailedPrecondition,
	strategy.ErrUnknownStrategy.Code(): connect.CodeFailedPrecondition,
	hapax.ErrInternal.Code():           connect.CodeInternal,
}

// Status returns the status of a code.
func Status(code hapax.Code) connect.Code {
	if status, ok := statuses[code]; ok {
		return status
	}
	return connect.CodeInternal
}

// maxText bounds what is repeated of a refused value, in bytes.
const maxText = 512

// Error returns err as it goes to a client. What went wrong inside the server
// may name hosts and files: of that, only the sentinel leaves.
func Error(err error) *connect.Error { return newError(err, false) }

// OperatorError returns err as it goes to an administrator: whole.
func OperatorError(err error) *connect.Error { return newError(err, true) }

func newError(err error, whole bool) *connect.Error {
	if e, ok := errors.AsType[*connect.Error](err); ok {
		return e
	}
	code := hapax.CodeOf(err)
	status := Status(code)
	detail := &hapaxv1.ErrorDetail{Code: string(code)}
	message := hapax.ErrorOf(code).Error()
	// These come from within the server. The others are about the request, and a client cannot mend
	// that without being told.
	switch status {
	case connect.CodeUnavailable, connect.CodeDataLoss, connect.CodeInternal, connect.CodeUnimplemented:
	default:
		whole = true
	}
	switch {
	case whole:
		message = err.Error()
	case durable.IsFull(err):
		message = "hapax: " + durable.FullText
	}
	if e, ok := errors.AsType[*hapax.ValueError](err); ok {
		detail.Field, detail.Allowed = e.Field, e.Allowed
		setValue(detail, e.Value)
	}
	if e, ok := errors.AsType[*hapax.NoWorkerError](err); ok {
		// For every client: it names a pool and a time, and nothing of the server's inside.
		message = e.Error()
		detail.Pool, detail.Size = e.Pool, e.Size
		if !e.NextFree.IsZero() {
			detail.NextFree = timestamppb.New(e.NextFree)
		}
	}
	if e, ok := errors.AsType[*strategy.VetoError](err); ok {
		detail.Plugin, detail.Reason = clean(e.Plugin, maxText), clean(e.Err.Error(), maxText)
		if !e.At.IsZero() {
			// This veto passes by itself, and permission_denied says that asking again is of no use.
			status, detail.RetryAt = connect.CodeResourceExhausted, timestamppb.New(e.At)
		}
	}
	if e, ok := errors.AsType[*strategy.PluginError](err); ok {
		// Why it failed stays in the log: a plugin may say anything.
		message = "hapax: " + e.Where()
		detail.Plugin, detail.Hook = clean(e.Plugin, maxText), e.Hook
	}
	out := connect.NewError(status, errors.New(clean(message, 4*maxText)))
	if d, err := connect.NewErrorDetail(detail); err == nil {
		out.AddDetail(d)
	}
	return out
}

func setValue(d *hapaxv1.ErrorDetail, value any) {
	switch v := value.(type) {
	case int:
		d.Value = &hapaxv1.ErrorDetail_Number{Number: int64(v)}
	case int64:
		d.Value = &hapaxv1.ErrorDetail_Number{Number: v}
	case hapax.ID:
		d.Value = &hapaxv1.ErrorDetail_Number{Number: int64(v)}
	default:
		d.Value = &hapaxv1.ErrorDetail_Text{Text: clean(fmt.Sprint(v), maxText)}
	}
	// Protobuf refuses text that is not UTF-8, and the whole detail with it.
	d.Field, d.Allowed = clean(d.Field, maxText), clean(d.Allowed, maxText)
}

// A NoAnswerError is the error of a call that no server of hapax answered. It matches
// hapax.ErrStoreUnavailable.
type NoAnswerError struct {
	Server string // its URL
	Err    error
}

// Error implements error.
func (e *NoAnswerError) Error() string {
	why := e.Err.Error()
	if said, ok := errors.AsType[*connect.Error](e.Err); ok {
		why = said.Message()
	}
	if e.NeverSent() {
		return "hapax: the server at " + e.Server + " cannot be reached: " + why
	}
	return "hapax: no answer from a hapax server at " + e.Server + ": " + why
}

// Unwrap makes the sentinel and the cause visible.
func (e *NoAnswerError) Unwrap() []error { return []error{hapax.ErrStoreUnavailable, e.Err} }

// NeverSent reports that no connection came about.
func (e *NoAnswerError) NeverSent() bool {
	op, ok := errors.AsType[*net.OpError](e.Err)
	return ok && op.Op == "dial"
}

// Cause returns an error of a call to a server as the library's: one that matches
// the sentinel whose code the server sent, or a *NoAnswerError if it was not a server of
// hapax that answered, or none. Errors of the context stay visible, and the
// library's own as they are.
func Cause(err error, server string) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*connect.Error](err)
	if _, ours := errors.AsType[*hapax.Error](err); ours {
		return err
	}
	if !ok {
		return &NoAnswerError{server, err}
	}
	if d := detailOf(e); d != nil {
		return fromDetail(d, e.Message())
	}
	// No detail: a proxy has answered, or the protocol itself, before any code of ours.
	switch e.Code() {
	case connect.CodeUnauthenticated:
		return fmt.Errorf("%w: %w", api.ErrUnauthenticated, err)
	case connect.CodePermissionDenied:
		return fmt.Errorf("%w: %w", api.ErrPermissionDenied, err)
	case connect.CodeInvalidArgument:
		return fmt.Errorf("%w: %w", hapax.ErrInvalidArgument, err)
	case connect.CodeDeadlineExceeded:
		if !errors.Is(err, context.DeadlineExceeded) { // the server's word
			err = errors.Join(err, context.DeadlineExceeded)
		}
	}
	return &NoAnswerError{server, err}
}

// IsMisunderstood reports whether an error may come from two versions that do not
// understand each other: no server of hapax has explained it.
func IsMisunderstood(err error) bool {
	e, ok := errors.AsType[*connect.Error](err)
	if !ok || detailOf(e) != nil {
		return false
	}
	switch e.Code() {
	case connect.CodeUnimplemented, connect.CodeInternal, connect.CodeInvalidArgument, connect.CodeUnknown:
		return true
	}
	return false
}

// detailOf returns the detail that a server of hapax has sent, or nil.
func detailOf(e *connect.Error) *hapaxv1.ErrorDetail {
	for _, d := range e.Details() {
		if m, err := d.Value(); err == nil {
			if m, ok := m.(*hapaxv1.ErrorDetail); ok {
				return m
			}
		}
	}
	return nil
}

func fromDetail(d *hapaxv1.ErrorDetail, message string) error {
	sentinel := hapax.ErrorOf(hapax.Code(d.GetCode()))
	switch {
	case sentinel == nil: // of a newer server
		return &remoteError{fmt.Sprintf("hapax: %s (%s)", message, d.GetCode()), hapax.ErrInternal}
	case d.GetField() != "":
		// A number stays one, as it was in the server's error.
		value := any(d.GetText())
		if n, ok := d.GetValue().(*hapaxv1.ErrorDetail_Number); ok {
			value = n.Number
		}
		return &hapax.ValueError{Field: d.GetField(), Value: value, Allowed: d.GetAllowed(), Err: sentinel}
	case sentinel == hapax.ErrNoWorker && d.GetPool() != "":
		e := &hapax.NoWorkerError{Pool: d.GetPool(), Size: d.GetSize()}
		if d.GetNextFree() != nil {
			e.NextFree = d.GetNextFree().AsTime()
		}
		return e
	case sentinel == strategy.ErrRejected && d.GetPlugin() != "":
		e := &strategy.VetoError{Plugin: d.GetPlugin(), Err: errors.New(d.GetReason())}
		if d.GetRetryAt() != nil {
			e.At = d.GetRetryAt().AsTime()
		}
		return e
	case sentinel == strategy.ErrPluginFailed && d.GetPlugin() != "":
		return &strategy.PluginError{Plugin: d.GetPlugin(), Hook: d.GetHook(), Err: errors.New("the server's log tells why")}
	}
	return &remoteError{message, sentinel}
}

// A remoteError is an error in the words of the server.
type remoteError struct {
	text     string
	sentinel *hapax.Error
}

func (e *remoteError) Error() string { return e.text }

// Unwrap makes the sentinel visible, and a loss that a server has found as a fence, too.
func (e *remoteError) Unwrap() []error {
	if e.sentinel == hapax.ErrStoreRolledBack {
		// It grants nothing until its store is healed. A grant that its receiver finds to be behind is another
		// thing: that one never asks again.
		return []error{e.sentinel, hapax.ErrFenced}
	}
	return []error{e.sentinel}
}

// timeOf returns the time of a message, and the zero time for none.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func newTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
