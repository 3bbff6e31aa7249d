package strategy

import (
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// The causes of errors that strategies and plugins have.
var (
	ErrRejected        = hapax.NewError("rejected", "the request was refused by policy", false)
	ErrPluginFailed    = hapax.NewError("plugin_failed", "a plugin failed, and what it failed on was not issued", false)
	ErrPluginMismatch  = hapax.NewError("plugin_mismatch", "the tag is frozen with other plugins that replace its numbers", false)
	ErrUnknownStrategy = hapax.NewError("unknown_strategy", "the tag's strategy is not registered here", false)
)

// A VetoError is the veto of a plugin. It matches [ErrRejected].
type VetoError struct {
	Plugin string
	Err    error     // what the plugin said
	At     time.Time // when to ask again, as far as the plugin knows; may be zero
}

func (e *VetoError) Error() string {
	return fmt.Sprintf("hapax: plugin %q refused: %v", e.Plugin, e.Err)
}

// Unwrap returns [ErrRejected] and what the plugin said.
func (e *VetoError) Unwrap() []error { return []error{ErrRejected, e.Err} }

// RetryAt returns when to ask again; zero if that is not known.
func (e *VetoError) RetryAt() time.Time { return e.At }

// A PluginError is a hook of a plugin that returned an error where it has no veto, or
// panicked. It matches [ErrPluginFailed].
type PluginError struct {
	Plugin string
	Hook   string // "Before", "After", "Replace" or "OnError"
	Err    error
	Stack  []byte // of a panic
}

func (e *PluginError) Error() string { return fmt.Sprintf("hapax: %s: %v", e.Where(), e.Err) }

// Where says which plugin failed, and in which hook, without why.
func (e *PluginError) Where() string { return fmt.Sprintf("plugin %q failed in %s", e.Plugin, e.Hook) }

// Unwrap returns [ErrPluginFailed] and the error.
func (e *PluginError) Unwrap() []error { return []error{ErrPluginFailed, e.Err} }
