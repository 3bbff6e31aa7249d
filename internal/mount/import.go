package mount

import (
	"context"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax/internal/moves"
)

// An Import is a command, hapax import NAME, that reads a foreign system's settings.
type Import struct {
	Use, Short, Example string

	// Long says what is read, and More explains the move to native tags, if what is
	// read is Movable.
	Long, More string

	// Flags adds the command's own. Positive are those of them of which a zero that is
	// given must not stand for the default.
	Flags    func(flags *pflag.FlagSet)
	Positive []string

	// FileOptional tells that flags can stand for the file. Most is how many arguments
	// there may be in place of one FILE; 0: it is a FILE.
	FileOptional bool
	Most         int

	// Verifies tells that what is read is Verifiable.
	Verifies bool

	// PasswordEnv, if there is one, is the variable that may hold a password; then what
	// is read is Movable.
	PasswordEnv string

	// Closes tells that the move closes what the old system issues from, and that there is
	// a way back.
	Closes bool

	// Read reads the file, or flags.
	Read func(ctx context.Context, open Files, args []string) (Imported, error)
}

// Files opens a file, or standard input for -.
type Files func(path string) (io.ReadCloser, error)

// Imported are the settings that were read from a foreign system.
type Imported interface {
	// YAML returns the block of configuration of a server that goes on in its place. It
	// names the file that holds the passwords, if there is one.
	YAML(passwordFile string) string
}

// A Movable system has tables that can be moved to native tags.
type Movable interface {
	Imported

	// Passwords returns the text of a file with the passwords; empty for none.
	Passwords() string

	// NativeYAML returns the block that serves the same routes from native tags.
	NativeYAML(ctx context.Context) (string, error)

	// Move returns what a move, or its way back, changes, and makes it if Apply is set.
	// It can be repeated.
	Move(ctx context.Context, to moves.Target, o MoveOptions) (Moves, error)
}

// Verifiable is implemented by imports that can be compared after a move.
type Verifiable interface {
	// Verify compares both sides of a move, and changes nothing.
	Verify(ctx context.Context, to moves.Target) ([]Verdict, error)
}

// A Verdict is the result of comparing one tag.
type Verdict struct {
	Tag, Says string
	Wrong     []string // nil: all is well
}

// MoveOptions tell how to move.
type MoveOptions struct {
	Apply        bool          // make the move
	Undo         bool          // the way back is meant
	Margin       int64         // how far above a row's mark the native one is set; 0 for the default
	Watch        time.Duration // how long the tables are watched for old nodes
	IgnoreLiving bool          // go on although there are some

	// Settings, if set, returns what the configuration of the native store says of a system; nil
	// for nothing, or where a server is given.
	Settings func(system string) (Settings, error)

	// Bar begins to show how far a phase is, until end.
	Bar func(phase string) (progress func(done, total int), end func())
}

// Moves are the changes of a move.
type Moves struct {
	Tags    []moves.Move
	Workers []WorkerMove
	Closes  string   // doors that are closed beside rows, and how, or opened on the way back
	Notes   []string // what the command cannot see, or close
}

// A WorkerMove carries a worker ID over to a native pool.
type WorkerMove struct {
	Pool          string
	Worker        int64
	Node          string    // that had it
	Before, Above time.Time // the native mark now, if there is one, and what it must be above
	Changes       bool      // it is not there yet
}
