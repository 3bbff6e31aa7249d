package model

import (
	"strings"
	"testing"
)

// A twin is the model without one rule, and a way in which it then goes wrong.
type twin struct {
	rule  Rule
	also  Rule // a second line of defence that is off in both models; nRules: none
	n     int  // processes that serve at first
	split bool
	live  bool // what is wrong is that somebody stands still in the end
	trace string
}

const (
	heal2 = "A beat; B beat; A wait; A ask; A speak; B speak; A heal"
	back2 = "A look; B look; A survey; B survey; A beat; B beat; A wait; A serve; B beat; B serve; A survey; B survey; A beat; B beat"
)

var twins = []twin{
	{rule: OwnRow, n: 2, trace: "A copy-disk; C start-copy; A beat; A beat; C survey; C serve; A grant 0"},
	{rule: KeepBeat, n: 1, trace: "A leave; A start"},
	{rule: Further, n: 1, trace: "copy; A copy-disk; A grant 0; C start-copy; A crash; put-back 0; C beat; C wait; C ask; C speak; C heal"},
	{rule: Contiguous, n: 1, trace: "copy; A send 1; A send 1; 1 carried-out; 1 answered; A copy-disk; 0 carried-out; 0 answered; A crash; put-back 0; C start-copy; C wait; C ask; C speak; C heal"},
	{rule: LearnNothing, n: 3, trace: "copy; A grant 0; B beat; A cut; put-back 0; C silence 0; B beat; B survey; C beat; B wait; B ask; B speak; C speak; B heal"},
	{rule: OneTrip, n: 2, trace: "copy; A grant 0; put-back 0; A beat; B grant 0"},
	{rule: Confirm, n: 2, split: true, trace: "A announce; copy; A grant 0; B announce; put-back 0; B grant 0"},
	{rule: Rejoin, n: 2, trace: "copy; A cut; C start-fresh; B beat; C wait; C survey; C serve; C grant 0; put-back 0; A return; A grant 0"},
	{rule: LongW, n: 2, trace: "copy; A grant 0; put-back 0; C start-fresh; C survey; C wait; C serve; C grant 0"},
	{rule: SurveyJoin, also: AccountJoins, n: 2, trace: "copy; C start-fresh; A beat; B beat; A beat; B beat; C survey; C serve; C grant 0; C crash; put-back 0; " + heal2},
	{rule: SurveyWhole, n: 2, trace: "copy; A beat; B grant 0; B leave; A read; put-back 0; A read-on; A beat; A wait; A ask; A speak; A heal"},
	{rule: SurveyOrder, n: 2, trace: "copy; A beat; A read; B grant 0; B leave; A read-on; A beat; put-back 0; A beat; A wait; A ask; A speak; A heal"},
	{rule: WaitSeen, n: 2, trace: "copy; A grant 0; put-back 0; C start-fresh; C survey; C serve; C grant 0"},
	{rule: WaitServing, n: 1, trace: "A leave; copy; A start; A grant 0; put-back 0; C start-fresh; C survey; C serve; C grant 0"},
	{rule: WaitAnew, n: 1, trace: "C start-fresh; A beat; copy; A grant 0; put-back 0; C survey; C wait; C serve; C grant 0"},
	{rule: QuickSoon, n: 1, trace: "A leave; copy; C start-fresh; C wait; C survey; C serve; C grant 0; put-back 0; A start; A grant 0"},
	{rule: LateID, n: 1, trace: "A grant 0; wipe; C start-fresh; C survey; A beat; C wait; C serve; C grant 0"},
	{rule: Pairs, n: 2, trace: "A grant 0; B survey; A hand-back; B survey"},
	{rule: PairAsSent, n: 1, trace: "A send 1; A send 1; 0 carried-out; 1 carried-out; 1 answered; 0 answered"},
	{rule: BackToken, n: 2, trace: "A grant 0; A send 3; 0 repeated; B grant 0; 0 carried-out; A grant 0"},
	{rule: Compacted, n: 2, trace: "A leave; B compact; A start"},
	{rule: Latch, n: 2, trace: "copy; B grant 0; put-back 0; B beat; A beat; B crash; put-back 0; A crash; A start; A wait; A survey; A serve; A grant 0"},
	{rule: RaiseAgain, n: 2, trace: "copy; B grant 0; put-back 0; B beat; A beat; B crash; put-back 0; A look; A wait; A survey; A serve; A grant 0"},
	{rule: NewDecision, n: 2, trace: "copy; A beat; put-back 0; " + heal2 + "; " + back2 + "; copy; B grant 0; put-back 1; B beat; A beat; B crash; put-back 1; A look; A wait; A survey; A serve; A grant 0"},
	{rule: FoundSpeaks, n: 1, trace: "copy; A beat; A cut; C start-fresh; C wait; C survey; C serve; C grant 0; put-back 0; C beat; C crash; A return; A rejoin; A wait; A ask; A speak; A heal"},
	{rule: NoEndFenced, also: RowsSettleNone, n: 2, trace: "copy; B grant 0; put-back 0; B beat; A beat; B leave; A wait; A ask; A speak; A heal"},
	{rule: Abandon, n: 2, trace: "copy; A grant 0; put-back 0; B send 1; 0 carried-out; A beat; B beat; 0 answered"},
	{rule: HealWait, n: 1, trace: "copy; A beat; A cut; C start-fresh; C wait; C survey; C serve; C grant 0; put-back 0; A return; A rejoin; A ask; A speak; A heal"},
	{rule: Vouch, n: 2, live: true, trace: "B crash; A silence 1; A survey; copy; A beat; put-back 0; A beat"},
	{rule: AskAnew, n: 2, live: true, trace: "wipe; B survey; A beat; B look; A look; B wait; A wait; A ask; A speak; copy; B ask; A speak; B speak; B heal; A look; put-back 0"},
	{rule: TopCount, n: 2, trace: "copy; A copy-disk; A grant 0; B survey; A grant 0; A crash; put-back 0; C start-copy; B survey; C beat; B wait; B ask; B speak; C speak; B heal"},
	{rule: AccountJoins, n: 2, trace: "copy; C start-fresh; A beat; B beat; C wait; C survey; C serve; C grant 0; C crash; put-back 0; " + heal2},
	{rule: RowsSettleNone, n: 3, trace: "copy; A grant 0; B beat; A cut; put-back 0; C silence 0; B beat; C beat; B wait; B ask; B speak; C speak; B heal"},
	{rule: FinderVouches, n: 3, trace: "copy; A grant 0; B beat; A cut; put-back 0; C silence 0; C survey; B beat; C beat; B wait; B ask; B speak; C speak; B heal"},
	{rule: RaiseMark, n: 2, trace: "copy; A grant 0; A grant 0; put-back 0; B grant 0; B hand-back; " + heal2},
	{rule: RaiseToken, n: 2, split: true, trace: "copy; A announce; A grant 0; A beat; A send 3; put-back 0; B announce; B grant 0; B beat; " + heal2 + "; " + back2 + "; 0 carried-out; B announce; B grant 0; B beat; A announce; A grant 0; A beat"},
	{rule: CheckLift, n: 2, trace: "copy; B grant 0; put-back 0; B beat; A beat; B look; A wait; A ask; A speak; B speak; copy; A raise 0; put-back 1; A look; B look; A wait; A seal; A check; A lift"},
	{rule: SealLift, also: CheckLift, n: 2, trace: "copy; B grant 0; put-back 0; B beat; A beat; B look; A wait; A ask; A speak; B speak; copy; A raise 0; put-back 1; A look; B look; A wait; A lift"},
	{rule: HealEnds, n: 2, trace: "copy; B beat; put-back 0; B beat; A beat; B look; A wait; A ask; A speak; B speak; A heal; A look; B crash; B start; B look; A survey; A beat; B survey; B serve; A survey; A beat; copy; A beat; A survey; B grant 0; B crash; A crash; put-back 1; A start; A wait; A survey; A serve; A grant 0"},
	{rule: ReturnRaises, n: 2, trace: "copy; B grant 0; A beat; B crash; put-back 0; A beat; A wait; A ask; A speak; 1 adopt; A heal; A look; B start; A wait; A survey; A serve; A grant 0"},
	{rule: JoinerWaits, n: 2, trace: "B grant 0; A crash; wipe; A start-fresh; copy; failover 0; A beat; A survey; A serve; A grant 0"},
	{rule: PeersTell, n: 2, live: true, trace: "C start-fresh; A crash; C survey; A start-fresh; B crash; B start; C wait; C serve; copy; B rejoin; C survey; put-back 0"},
	{rule: Reader, n: 3, trace: "C crash; peace"},
	{rule: NextReader, n: 3, trace: "A crash; peace"},
	{rule: MarkFirst, also: ReaderTells, n: 3, trace: "C crash; peace"},
	{rule: ReaderTells, n: 3, trace: "C leave-untold; peace"},
	{rule: Question, n: 2, trace: "copy; A grant 0; failover 0; B grant 0"},
}

// spare are rules that the model goes well without as long as it has the others:
// every evidence stays true until a decision, a decision ends all rows, and no
// verdict needs a join number that was used before.
var spare = map[Rule]bool{FreshWord: true, RaiseJoins: true, MetSince: true}

// steps reads a trace.
func steps(t *testing.T, text string) (out []Step) {
	t.Helper()
	names := map[string]Step{}
	for _, st := range all {
		names[st.String()] = st
	}
	for part := range strings.SplitSeq(text, "; ") {
		st, ok := names[part]
		if !ok {
			t.Fatalf("no step %q", part)
		}
		out = append(out, st)
	}
	return out
}

// TestTwins breaks each rule in turn: the trace must then end badly, and must
// not while the rule is kept.
func TestTwins(t *testing.T) {
	tested := map[Rule]bool{}
	for _, tw := range twins {
		tested[tw.rule] = true
		t.Run(tw.rule.String(), func(t *testing.T) {
			sound := Model{Split: tw.split, Lines: 1}
			if tw.also != 0 {
				sound = sound.Without(tw.also)
			}
			broken := sound.Without(tw.rule)
			trace := steps(t, tw.trace)
			if _, bad := sound.wrong(plenty(sound.Initial(tw.n)), trace, tw.live); bad != "" {
				t.Errorf("with the rule: %s", bad)
			}
			got, bad := broken.wrong(plenty(broken.Initial(tw.n)), trace, tw.live)
			if bad == "" {
				t.Errorf("without the rule nothing is wrong after %d of %d steps: %v", len(got), len(trace), Trace{Steps: got})
			}
			t.Log(bad)
		})
	}
	for r := range nRules {
		if !tested[r] && !spare[r] {
			t.Errorf("rule %s has no twin", r)
		}
	}
}

// plenty gives a state a budget that does not run out.
func plenty(s State) State {
	for i := range s.B {
		s.B[i] = 100
	}
	return s
}

// TestGoingOn shows why a process that was out of contact for W does not go on as soon as it finds
// its row as it left it, but when all who are there have met the store since.
func TestGoingOn(t *testing.T) {
	const lost = "copy; A cut; C start-fresh; B beat; C wait; C survey; C serve; C grant 0; put-back 0; A return; A go-on; A serve; A grant 0"
	for _, test := range []struct {
		name  string
		model Model
		bad   bool
	}{
		{"at once", Model{Lines: 1, Resume: true}, true},
		{"when all have met the store since", Model{Lines: 1, Return: true}, false},
		{"when all have met the store at any time", Model{Lines: 1, Return: true}.Without(MetSince), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, bad := test.model.wrong(plenty(test.model.Initial(2)), steps(t, lost), false)
			if (bad != "") != test.bad {
				t.Errorf("after %v it is %q", Trace{Steps: got}, bad)
			}
			t.Log(bad)
		})
	}
}
