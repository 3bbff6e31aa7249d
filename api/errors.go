// Package api is what a server of hapax and its clients say to each other beyond what the
// library knows: the causes of errors that only a server has. The messages of the RPC
// protocol are in package hapaxv1 below it.
package api

import "github.com/hapax-id/hapax"

// The causes of errors that only a server has.
var (
	ErrUnauthenticated  = hapax.NewError("unauthenticated", "credentials are missing or wrong", false)
	ErrPermissionDenied = hapax.NewError("permission_denied", "the credentials do not allow this", false)
	ErrLimitExceeded    = hapax.NewError("limit_exceeded", "a limit of the service is reached", true)
	ErrFloorUnread      = hapax.NewError("floor_unread", "no witness knows how far the tag was issued, and its columns (floor_from) cannot be read", false)
)

// StoreHeader is the header by which a reply names the server's store, and a
// request the one that it is meant for.
const StoreHeader = "Hapax-Store"
