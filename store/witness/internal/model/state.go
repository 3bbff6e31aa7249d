package model

// The bounds of the model.
const (
	Procs = 3  // slots for processes; a slot is a machine with a disk
	Rows  = 16 // rows that can ever be registered, in all branches of history
	Lines = 2
	Nums  = 14 // numbers on a line; each grant is one number
	Calls = 2  // calls that can be under way
)

// none is no row, no number, no process.
const none = 255

// The states of a row. A row that ended keeps its beat.
const (
	absent = iota
	registered
	live
	left
	silent
)

// The states of a process.
const (
	down     = iota
	joining  // has a row, is granted nothing yet
	serving  // is granted numbers
	fenced   // saw a fence
	refusing // found the store behind
	other    // found another store under its address
)

// A Row is the row of one process start. Its index is the random run.
type Row struct {
	St, Count, Grants, Seen uint8
}

func (r Row) alive() bool { return r.St == registered || r.St == live }
func (r Row) ended() bool { return r.St == left || r.St == silent }

// A Pair is the mark of a line with its token.
type Pair struct{ Tok, Mark uint8 }

func (a Pair) less(b Pair) bool { return a.Tok < b.Tok || a.Tok == b.Tok && a.Mark < b.Mark }

func (a Pair) max(b Pair) Pair { return Pair{max(a.Tok, b.Tok), max(a.Mark, b.Mark)} }

// Evidence is what the witnesses have said about a loss, put together: it is
// kept with the fence.
type Evidence struct {
	ID     uint8
	Pairs  [Lines]Pair
	Joins  uint8        // highest join that anybody knows of
	K      uint8        // up to which joins those who found the loss know rows compacted
	Known  uint16       // rows that anybody knows of
	Stale  uint16       // ghost: see Witness
	Top    [Rows]uint8  // highest grant count that anybody knows of, by row
	Spoke  uint16       // rows with a speaker
	Claim  [Rows]uint8  // highest grant count of a speaker
	Ended  uint16       // rows of which a finder of the loss saw that they had ended
	Vouch  [Rows]uint8  // highest grant count that such a one saw
	Said   uint8        // processes that spoke under the present word
	Settle uint16       // rows that an operator spoke for
	Adopt  bool         // ... for all who are missing
	Low    bool         // ghost: with a floor that is too low
	Floor  [Lines]uint8 // of the operator
}

// A Store is all that a copy of the store holds.
type Store struct {
	ID, Prim uint8
	Joins    uint8 // counter of joins
	Changes  uint8 // counter of those who have ended
	K        uint8 // rows up to this join are compacted
	DecSaid  uint8 // processes that spoke for the latest decision
	LastDec  uint8 // the latest decision
	DecJoins uint8 // all that joined up to here are accounted for by it
	Lines    [Lines]Pair
	Rows     [Rows]Row
	Fence    uint8 // name of the fence; 0: none
	Found    uint16
	Finders  uint16      // ghost: rows of all who found the loss
	FoundG   [Rows]uint8 // grant counts of the rows in Found
	Word     uint8       // of the healer
	Seal     uint8       // second word, written after the last raise
	Ev       Evidence
	Decided  uint16 // all decisions
}

// A Witness is the file of a process.
type Witness struct {
	Has     bool
	ID      uint8
	Last    uint8       // the latest own row
	Mine    uint16      // own rows that it speaks for
	Count   [Rows]uint8 // own rows: highest beat acknowledged, as of the last sync
	Grants  [Rows]uint8 // own rows: all grants up to this are known
	Pairs   [Lines]Pair
	Joins   uint8 // highest known
	Changes uint8 // of a survey: the number before the rows were read
	K       uint8
	Know    uint16      // rows that a survey found
	SeenG   [Rows]uint8 // their grant counts
	Gone    uint16      // those that had ended
	Latch   uint8       // the fence that was seen
	Warned  bool        // ghost: saw a fence, and no decision since
	TrueDec uint16      // ghost: decisions that it could have learned of
	Stale   uint16      // ghost: own rows that it met further than it knows
	Lost    bool        // this witness found the store behind
	Dec     uint16      // decisions that it knows
}

// A Proc is one process, and the disk of its machine.
type Proc struct {
	St, Row    uint8
	Conn       bool
	Count      uint8 // highest beat acknowledged
	Sent       uint8 // highest beat sent
	Grants     uint8 // grants asked for
	SeenJoins  uint8 // highest join known when the last answer came
	Surveyed   uint8 // up to which join all is in the witness
	Learnt     uint8 // the number of changes as of its last survey
	Owes       uint8 // it has begun to mark this row silent, and has not ended that; none
	Prim       uint8 // the primary that it knows
	Asked      bool  // another primary answered: waits for those that it knows
	Back       bool  // was out of contact for W: needs one of them at least
	WaitCount  [Rows]uint8
	Word, Seal uint8 // as healer
	Raised     uint8
	Checked    uint8   // as healer: the seal under which it has read all lines raised
	Long       bool    // was out of contact for W
	Waited     bool    // W has passed since it began to wait
	Met        uint8   // ghost: processes that met the store since then
	Gap        uint8   // ghost: processes that were out of reach at any time since then
	After      uint8   // ghost: machines that had left when it began to wait
	Reading    uint8   // a survey under way: 1 one half read, 2 both
	Survey     Witness // what it found
	Ready      bool    // split stores: a beat announced a grant
	HoldL      uint8   // a grant in hand that may be handed back; none
	Hold, HTok uint8
	PendL      uint8 // split stores: a grant to be confirmed by a beat; none
	Pend       uint8
	PendG      uint8
	PendPair   Pair
	PendExcuse excuse
	Excused    bool // ghost: what it is granted now is a listed case, while there is an unhealed loss
	Quick      bool // its machine left in good order less than W ago
	W          Witness
}

func (p *Proc) up() bool { return p.St != down }

// The kinds and phases of calls.
const (
	callBeat = iota + 1
	callGrant
	callBack

	sent     = 1
	answered = 2
)

// A Call is a call under way.
type Call struct {
	Kind, Phase  uint8
	P, Row       uint8 // P is none when its process is gone
	Was, Now     uint8
	Grants, Seen uint8
	Line, N, Tok uint8       // of a hand-back: the number and the token of its grant
	Known        [Lines]Pair // what the process knew when it sent the call
	KnownJoins   uint8
	Confirm      bool // sent after the grant that it confirms
	Across       bool // ghost: sent before a restore and not carried out yet
	Fenced       bool // ghost: carried out while a fence stood
	Met          bool
	Joins, Prim  uint8 // found
	Pair         Pair  // granted
}

// An excuse says whether a number that comes twice is a listed case.
type excuse uint8

const (
	asProcess excuse = iota // if the process is excused
	always
	never
)

// A State is a state of the world.
type State struct {
	S     Store
	Snaps [2]Store
	NSnap uint8
	P     [Procs]Proc
	Dir   Witness // a copied directory
	Call  [Calls]Call

	JoinOf                                        [Rows]uint8
	NextRow, NextFence, NextWord, NextID, NextDec uint8
	NextPrim                                      uint8
	Hung                                          uint8 // ghost: connections that hang since a restore
	Restores                                      uint8
	Dirty                                         bool // ghost: something was put back and not healed since
	Own                                           [Lines]uint16
	Exc                                           [Lines]uint16      // ghost: numbers of listed cases
	Owner                                         [Lines][Nums]uint8 // ghost: row
	TrueG                                         [Rows]uint8        // ghost: highest grant count used under a row
	Blind                                         uint16             // ghost: rows marked silent after a loss that nobody in reach could know
	BlindID                                       uint16             // ghost: store IDs made after a loss that nobody in reach could know
	B                                             [nBudgets]uint8
}
