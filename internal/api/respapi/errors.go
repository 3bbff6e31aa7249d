package respapi

import (
	"errors"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/strategy"
)

// How errors of the service are told.
type translation struct {
	prefix string // the first word of the reply, by which clients tell errors apart
	hidden bool   // the details may name hosts and files; they are in the log
}

// translations has every code.
var translations = map[hapax.Code]translation{
	hapax.ErrInvalidArgument.Code(): {"ERR", false},
	hapax.ErrInvalidTag.Code():      {"ERR", false},
	hapax.ErrInvalidLayout.Code():   {"ERR", false},
	hapax.ErrInvalidID.Code():       {"ERR", false},
	hapax.ErrFieldRange.Code():      {"ERR", false},

	hapax.ErrTagNotFound.Code():    {"ERR", false},
	hapax.ErrTagDeleted.Code():     {"ERR", false},
	hapax.ErrTagExists.Code():      {"ERR", false},
	hapax.ErrPoolNotFound.Code():   {"ERR", false},
	hapax.ErrPoolDeleted.Code():    {"ERR", false},
	hapax.ErrKindMismatch.Code():   {"WRONGTYPE", false},
	hapax.ErrLayoutMismatch.Code(): {"WRONGTYPE", false},
	hapax.ErrLineExhausted.Code():  {"ERR", false},
	hapax.ErrTimeExhausted.Code():  {"ERR", false},

	hapax.ErrTickExhausted.Code(): {"UNAVAILABLE", true},
	hapax.ErrRefillPending.Code(): {"UNAVAILABLE", true},
	hapax.ErrNoWorker.Code():      {"UNAVAILABLE", true},

	hapax.ErrLeaseLost.Code():      {"UNAVAILABLE", true},
	hapax.ErrWorkerPoisoned.Code(): {"FAILED", true},
	hapax.ErrClockRollback.Code():  {"UNAVAILABLE", true},
	hapax.ErrClockSkew.Code():      {"UNAVAILABLE", true},

	hapax.ErrStoreUnavailable.Code(): {"UNAVAILABLE", true},
	hapax.ErrStoreLocked.Code():      {"UNAVAILABLE", true},
	hapax.ErrStoreCopied.Code():      {"UNAVAILABLE", true},
	hapax.ErrStoreCorrupt.Code():     {"FAILED", true},
	hapax.ErrStoreReplaced.Code():    {"UNAVAILABLE", true},
	hapax.ErrStoreRetired.Code():     {"UNAVAILABLE", true},
	hapax.ErrStoreRolledBack.Code():  {"UNAVAILABLE", true},
	hapax.ErrStoreUnsafe.Code():      {"UNAVAILABLE", true},
	hapax.ErrFenced.Code():           {"UNAVAILABLE", true},
	hapax.ErrWitnessFailed.Code():    {"UNAVAILABLE", true},
	hapax.ErrNotSupported.Code():     {"ERR", true},

	hapax.ErrClosed.Code():             {"UNAVAILABLE", true},
	strategy.ErrRejected.Code():        {"REJECTED", false},
	strategy.ErrPluginFailed.Code():    {"FAILED", true},
	strategy.ErrPluginMismatch.Code():  {"ERR", false},
	strategy.ErrUnknownStrategy.Code(): {"ERR", false},
	api.ErrLimitExceeded.Code():        {"LIMIT", false},
	api.ErrFloorUnread.Code():          {"UNAVAILABLE", true},
	api.ErrUnauthenticated.Code():      {"WRONGPASS", true},
	api.ErrPermissionDenied.Code():     {"NOPERM", false},
	hapax.ErrInternal.Code():           {"FAILED", true},
}

// errorText returns what a client is told of an error of the service: prefix,
// stable code, and words.
func errorText(err error) string {
	code := hapax.CodeOf(err)
	if code == api.ErrUnauthenticated.Code() {
		return errWrongPass
	}
	t, ok := translations[code]
	if !ok {
		t = translations[hapax.ErrInternal.Code()]
	}
	text := hapax.Message(err)
	if t.hidden {
		text = string(code)
		if e := hapax.ErrorOf(code); e != nil {
			text = hapax.Message(e)
		}
		if e, ok := errors.AsType[*hapax.NoWorkerError](err); ok {
			text = hapax.Message(e)
		}
		if e, ok := errors.AsType[*strategy.PluginError](err); ok {
			text = e.Where()
		}
	}
	return t.prefix + " " + string(code) + ": " + text
}

// Errors in the words of Redis.
const (
	errNotInteger  = "ERR value is not an integer or out of range"
	errSyntax      = "ERR syntax error"
	errStopping    = "UNAVAILABLE closed: the server is about to stop; connect again, or to another node"
	errNoAuth      = "NOAUTH Authentication required."
	errHelloNoAuth = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
	errWrongPass   = "WRONGPASS invalid username-password pair or user is disabled."
	errNoPassword  = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?" //nolint:gosec // no password
	errNoProto     = "NOPROTO unsupported protocol version"
	errNotProto    = "ERR Protocol version is not an integer or out of range"
	errDBRange     = "ERR DB index is out of range: hapax has only database 0; use tags of different names to keep numbers apart"
	errDBIndex     = "ERR invalid DB index"
	errClientName  = "ERR Client names cannot contain spaces, newlines or special characters."
)

// maxShownArgs is how many bytes of arguments an error repeats.
const maxShownArgs = 128

func unknownSubcommand(command string, sub []byte) string {
	return "ERR unknown subcommand '" + string(sub[:min(len(sub), maxShownArgs)]) + "'. Try " + strings.ToUpper(command) + " HELP."
}

func wrongArgs(command string) string {
	return "ERR wrong number of arguments for '" + command + "' command"
}
