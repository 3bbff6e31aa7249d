package service

import (
	"context"
	"errors"
	"log/slog"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/strategy"
)

// Attempted writes to the audit log what somebody did who may do more than take
// numbers, or was refused: who, from where, and what came of it. What one token
// does over and over is thinned out, and counted.
func (c *core) Attempted(ctx context.Context, action string, err error, about ...any) {
	caller := auth.FromContext(ctx)
	level, outcome := slog.LevelInfo, "done"
	switch {
	case err == nil:
	case isRefused(err):
		level, outcome = slog.LevelWarn, "refused"
	default:
		outcome = "failed"
	}
	// By outcome and action, too: a flood of refusals must not hide what was done.
	pass, dropped := c.throttle.pass("audit " + caller.Name() + " " + outcome + " " + action)
	if !pass {
		return
	}
	attrs := append([]any{"token", caller.Name(), "address", auth.AddressFrom(ctx), "outcome", outcome}, about...)
	if err != nil {
		attrs = append(attrs, "code", hapax.CodeOf(err), "err", err)
	}
	if dropped > 0 {
		attrs = append(attrs, "suppressed", dropped)
	}
	c.log.WithGroup("audit").Log(ctx, level, action, attrs...)
}

// isRefused reports whether an error means that the caller asked for something that it may
// not have.
func isRefused(err error) bool {
	for _, e := range []*hapax.Error{
		api.ErrUnauthenticated, api.ErrPermissionDenied, api.ErrLimitExceeded, hapax.ErrLeaseLost,
		hapax.ErrInvalidArgument, hapax.ErrInvalidTag, hapax.ErrLayoutMismatch, hapax.ErrFenced, strategy.ErrRejected,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// isPersonal reports whether an error is about who asked, so that another may
// get another answer.
func isPersonal(err error) bool {
	_, limited := errors.AsType[*auth.LimitError](err)
	return limited || errors.Is(err, api.ErrPermissionDenied)
}
