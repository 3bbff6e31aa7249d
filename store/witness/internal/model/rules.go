package model

// A Rule is one rule of the guard. A broken twin is the model without one.
type Rule uint8

// The rules, in the order of the section of the design.
const (
	OwnRow         Rule = iota // every start has a row of its own
	KeepBeat                   // rows that ended keep their beat
	Further                    // a node never speaks for a row under which more was granted than its witness knows
	Contiguous                 // the witness's grant count has no call under way below it
	LearnNothing               // a witness learns nothing from a store that it found behind
	OneTrip                    // a beat counts only if the same round trip saw no fence
	Confirm                    // split stores: a grant counts when a later beat was made
	Rejoin                     // a process that was out of contact for W joins again
	LongW                      // W is longer than a hung connection lasts
	SurveyJoin                 // who says that he has seen a join has surveyed
	Vouch                      // who saw that a node had ended speaks for it
	SurveyWhole                // a survey counts when a later beat was made
	SurveyOrder                // rows before marks
	WaitSeen                   // a joiner waits until all rows have seen its join
	WaitServing                // ... and one of those serves
	WaitAnew                   // a wait begins anew with a new connection
	QuickSoon                  // a quick return is within W
	LateID                     // a store ID is made at the end of the wait
	Pairs                      // marks compare as pairs, token first
	PairAsSent                 // a pair compares with the knowledge at the time of sending
	BackToken                  // a hand-back is conditional on its token
	Compacted                  // a row up to the compacted joins is not missing
	Latch                      // refusing and fenced survive a restart
	RaiseAgain                 // a fence that vanishes without its decision is raised again
	NewDecision                // only a decision that the witness does not know ends what it latched
	FoundSpeaks                // a process that finds itself behind is added to the fence
	NoEndFenced                // under a fence nobody leaves or is marked silent
	Abandon                    // a grant answered in any state but serving is abandoned
	HealWait                   // the healer waits W
	FreshWord                  // evidence counts only under the healer's fresh word
	AskAnew                    // a process that finds itself behind again asks with another word
	TopCount                   // evidence for a row must reach the highest count known
	AccountJoins               // every join number is accounted for
	RowsSettleNone             // the store's own tombstones settle nobody
	FinderVouches              // only who found the loss vouches
	RaiseMark                  // above every known mark
	RaiseToken                 // above every known token
	RaiseJoins                 // and above every known join
	SealLift                   // lifting compares with a word written after the last raise
	CheckLift                  // ... after which all lines were read once more
	HealEnds                   // healing ends every row
	ReturnRaises               // a process that knows more than a healing assumed raises its lines
	Question                   // a changed primary is a question
	JoinerWaits                // ... for a serving process: a joiner begins its wait anew
	PeersTell                  // a store that lacks a surveyed row of another is behind
	MetSince                   // a process that was out of contact for W goes on when all have met the store since
	Reader                     // one of the living reads the rows of all, and marks the silent
	NextReader                 // ... the next one where the row of the first stands still
	MarkFirst                  // the number of changes is moved after the mark of silence is written
	ReaderTells                // ... by the reader where the process that has ended, or has marked, did not
	nRules
)

var ruleNames = [nRules]string{
	"OwnRow", "KeepBeat", "Further", "Contiguous", "LearnNothing", "OneTrip", "Confirm", "Rejoin", "LongW",
	"SurveyJoin", "Vouch", "SurveyWhole", "SurveyOrder", "WaitSeen", "WaitServing", "WaitAnew", "QuickSoon",
	"LateID", "Pairs", "PairAsSent", "BackToken", "Compacted", "Latch", "RaiseAgain", "NewDecision", "FoundSpeaks",
	"NoEndFenced", "Abandon", "HealWait", "FreshWord", "AskAnew", "TopCount", "AccountJoins", "RowsSettleNone", "FinderVouches",
	"RaiseMark", "RaiseToken", "RaiseJoins", "SealLift", "CheckLift", "HealEnds", "ReturnRaises", "Question", "JoinerWaits", "PeersTell", "MetSince",
	"Reader", "NextReader", "MarkFirst", "ReaderTells",
}

func (r Rule) String() string { return ruleNames[r] }
