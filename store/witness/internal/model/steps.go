package model

import "fmt"

// An Op is what can happen. Environment and process steps are alike.
type Op uint8

const (
	opBeat Op = iota
	opBeatLost
	opGrant
	opGrantLost
	opReady
	opBack
	opSend
	opCarry
	opReceive
	opRepeat
	opLose
	opSurvey
	opRead1
	opRead2
	opGoOn
	opRejoin
	opResume
	opLeave
	opLeaveUntold
	opSilence
	opMark
	opTell
	opPeace
	opCompact
	opLook
	opAsk
	opSpeak
	opHeal
	opRaiseLine
	opSeal
	opCheck
	opLift
	opSettle
	opAdopt
	opGive
	opWait
	opCrash
	opCut
	opReturn
	opStart
	opStartCopy
	opStartFresh
	opCopy
	opSnap
	opRestore
	opFailover
	opWipe
	nOps
)

// Budgets bound how often something happens.
const (
	bBeat = iota
	bGrant
	bLost
	bFlight
	bBack
	bSlow // surveys and healings in several steps
	bAsk
	bLeave
	bSilence
	bPeace
	bCompact
	bOperator
	bCrash
	bCut
	bStart
	bFresh
	bCopy
	bSnap
	bRestore
	bFailover
	bWipe
	nBudgets
)

var budgetNames = [nBudgets]string{
	"beat", "grant", "lost", "flight", "back", "slow", "ask", "leave", "silence", "peace", "compact", "operator", "crash", "cut",
	"start", "fresh", "copy-disk", "copy", "put-back", "failover", "wipe",
}

// A Step is an Op of a process or a call, with an argument.
type Step struct {
	Op  Op
	P   uint8
	Arg uint8
}

type opSpec struct {
	name   string
	subj   int // how many subjects: processes, calls, or 1
	args   int
	budget int // -1: free
	do     func(w *world, p, a int) bool
}

func (st Step) String() string {
	sp := ops[st.Op]
	t := sp.name
	switch sp.subj {
	case Procs:
		t = string(rune('A'+st.P)) + " " + t
	case 2: // calls, or an operator whose floor is right or low
		t = string(rune('0'+st.P)) + " " + t
	}
	if sp.args > 1 {
		t += fmt.Sprintf(" %d", st.Arg)
	}
	return t
}

func (w *world) active(p int) bool {
	pr := &w.P[p]
	return pr.Conn && (pr.St == serving || pr.St == joining) && pr.Row != none && !(pr.Long && w.m.on(Rejoin))
}

func (w *world) stopped(p int) bool {
	pr := &w.P[p]
	return pr.Conn && (pr.St == fenced || pr.St == refusing)
}

// mayGrant reports whether p may ask for a grant now.
func (w *world) mayGrant(p, l int) bool {
	pr := &w.P[p]
	// The last numbers of a line are left for calls under way.
	if l >= w.m.Lines || !w.active(p) || pr.St != serving || w.S.Lines[l].Mark >= Nums-3 {
		return false
	}
	return !w.m.Split || pr.Ready && pr.PendL == none
}

func (w *world) quick(p int, kind uint8, l int, lost bool) {
	c := w.newCall(p, kind)
	if kind == callGrant {
		c.Line = uint8(l)
	}
	w.carryOut(&c)
	if !lost {
		w.receive(&c)
	}
}

func (w *world) spend(b int) bool {
	if w.B[b] == 0 {
		return false
	}
	w.B[b]--
	return true
}

var ops [nOps]opSpec

// all is every step there is.
var all []Step

func init() {
	ops = [nOps]opSpec{
		opBeat: {"beat", Procs, 1, bBeat, func(w *world, p, _ int) bool {
			if !w.active(p) {
				return false
			}
			w.quick(p, callBeat, 0, false)
			w.take(p)
			return true
		}},
		opBeatLost: {"beat-lost", Procs, 1, bLost, func(w *world, p, _ int) bool {
			if !w.active(p) {
				return false
			}
			// The row moves, and its process does not know: the greater count is its own all the same.
			w.quick(p, callBeat, 0, true)
			return true
		}},
		opGrant: {"grant", Procs, Lines, bGrant, func(w *world, p, l int) bool {
			if !w.mayGrant(p, l) {
				return false
			}
			w.quick(p, callGrant, l, false)
			return true
		}},
		opGrantLost: {"grant-lost", Procs, Lines, bLost, func(w *world, p, l int) bool {
			if !w.mayGrant(p, l) {
				return false
			}
			// The number is a gap: nobody knows that it was granted, and it is not asked for again.
			w.quick(p, callGrant, l, true)
			return true
		}},
		opReady: {"announce", Procs, 1, bGrant, func(w *world, p, _ int) bool {
			if !w.m.Split || !w.active(p) || w.P[p].St != serving || w.P[p].Ready || w.P[p].PendL != none {
				return false
			}
			// The row counts the grant before it is made: a crash in between leaves the count too high, and
			// evidence is asked for of a grant that never was. Too low, it would miss one.
			w.P[p].Grants++
			w.quick(p, callBeat, 0, false)
			w.P[p].Ready = w.P[p].St == serving
			return true
		}},
		opBack: {"hand-back", Procs, 1, bBack, func(w *world, p, _ int) bool {
			if !w.active(p) || w.P[p].St != serving || w.P[p].HoldL == none {
				return false
			}
			w.quick(p, callBack, 0, false)
			return true
		}},
		opSend: {"send", Procs, 4, bFlight, func(w *world, p, a int) bool {
			if !w.active(p) || w.P[p].St != serving {
				return false
			}
			// The call can be carried out after the store was put back, and answered out of order.
			i := 0
			for i < Calls && w.Call[i].Kind != 0 {
				i++
			}
			if i == Calls || (a == 1 || a == 2) && !w.mayGrant(p, a-1) || a == 3 && w.P[p].HoldL == none {
				return false
			}
			kind := []uint8{callBeat, callGrant, callGrant, callBack}[a]
			c := w.newCall(p, kind)
			if kind == callGrant {
				c.Line = uint8(a - 1)
			}
			w.Call[i] = c
			return true
		}},
		opCarry: {"carried-out", Calls, 1, -1, func(w *world, i, _ int) bool {
			if w.Call[i].Kind == 0 || w.Call[i].Phase != sent || w.S.Lines[w.Call[i].Line].Mark >= Nums-1 {
				return false
			}
			w.carryOut(&w.Call[i])
			return true
		}},
		opRepeat: {"repeated", Calls, 1, bLost, func(w *world, i, _ int) bool {
			// Only a hand-back lowers a mark: a beat that comes twice raises nothing, and a grant that does
			// is one whose answer is lost.
			if c := w.Call[i]; c.Kind == callBack && c.Phase == sent {
				w.carryOut(&c)
				return true
			}
			return false
		}},
		opReceive: {"answered", Calls, 1, -1, func(w *world, i, _ int) bool {
			c := w.Call[i]
			if c.Kind == 0 || c.Phase != answered || c.P == none || !w.P[c.P].Conn {
				return false
			}
			w.Call[i] = Call{}
			w.receive(&c)
			return true
		}},
		opLose: {"lost", Calls, 1, -1, func(w *world, i, _ int) bool {
			if w.Call[i].Kind == 0 {
				return false
			}
			w.Call[i] = Call{}
			return true
		}},
		opSurvey: {"survey", Procs, 1, -1, func(w *world, p, _ int) bool {
			if !w.m.on(LearnNothing) && w.stopped(p) {
				w.learnAll(p)
				return true
			}
			if !w.active(p) {
				return false
			}
			w.contact(p)
			// Judged first: in a store that went back, nodes may have been marked silent by a joiner that
			// knew nothing of the loss, and a survey of that would vouch for them.
			if w.judge(p) && !w.ousted(p) {
				w.learnAll(p)
			}
			return true
		}},
		opRead1: {"read", Procs, 1, bSlow, func(w *world, p, _ int) bool {
			if !w.active(p) || w.P[p].Reading != 0 {
				return false
			}
			w.P[p].Reading, w.P[p].Survey = 1, Witness{}
			// Rows first: a node that is granted a number between the halves and leaves is found alive. The
			// other way round it would be vouched for, with the mark from before its grant.
			w.readHalf(p, w.m.on(SurveyOrder))
			return true
		}},
		opRead2: {"read-on", Procs, 1, -1, func(w *world, p, _ int) bool {
			if !w.active(p) || w.P[p].Reading != 1 {
				return false
			}
			w.P[p].Reading = 2
			w.readHalf(p, !w.m.on(SurveyOrder))
			if !w.m.on(SurveyWhole) {
				sv := w.P[p].Survey
				w.learn(p, &sv)
			}
			return true
		}},
		opGoOn: {"serve", Procs, 1, -1, func(w *world, p, _ int) bool {
			if !w.active(p) || w.P[p].St != joining {
				return false
			}
			// A witness without marks and rows would not notice their loss: a joiner surveys before it serves.
			if !w.P[p].Asked && w.P[p].Surveyed < w.JoinOf[w.P[p].Row] && w.m.on(SurveyJoin) {
				return false
			}
			if ok, _ := w.mayServe(p); !ok {
				return false
			}
			w.contact(p)
			if w.judge(p) && !w.ousted(p) {
				// The wait may have ended at the old primary: this one may lack the beats that ended it.
				if w.P[p].Prim != w.S.Prim && w.m.on(Question) {
					w.question(p)
					return true
				}
				w.serve(p)
			}
			return true
		}},
		opRejoin: {"rejoin", Procs, 1, -1, func(w *world, p, _ int) bool {
			pr := &w.P[p]
			if !pr.Conn || pr.St != serving && pr.St != joining || pr.Row != none && !(pr.Long && w.m.on(Rejoin)) && !w.ousted(p) {
				return false
			}
			return w.rejoin(p)
		}},
		opResume: {"go-on", Procs, 1, -1, func(w *world, p, _ int) bool {
			return (w.m.Resume || w.m.Return) && w.back(p)
		}},
		opLeave:       {"leave", Procs, 1, bLeave, func(w *world, p, _ int) bool { return w.leave(p, true) }},
		opLeaveUntold: {"leave-untold", Procs, 1, bLeave, func(w *world, p, _ int) bool { return w.leave(p, false) }},
		opMark: {"mark", Procs, Rows, bSilence, func(w *world, p, x int) bool {
			if !w.maySilence(p, x) || w.P[p].Owes != none || !w.m.on(NoEndFenced) {
				return false
			}
			w.contact(p)
			if w.judge(p) && !w.ousted(p) {
				w.begun(p, uint8(x))
			}
			return true
		}},
		opTell: {"tell", Procs, 1, -1, func(w *world, p, _ int) bool {
			if !w.active(p) || w.P[p].Owes == none {
				return false
			}
			w.contact(p)
			if w.judge(p) && !w.ousted(p) {
				w.finish(p)
			}
			return true
		}},
		opPeace: {"peace", 1, 1, bPeace, func(w *world, _, _ int) bool { return w.peace() }},
		opSilence: {"silence", Procs, Rows, bSilence, func(w *world, p, x int) bool {
			if !w.maySilence(p, x) {
				return false
			}
			w.contact(p)
			if w.active(p) && (!w.judge(p) || w.ousted(p)) {
				return true
			}
			w.silence(p, uint8(x))
			w.S.Changes++
			return true
		}},
		opCompact: {"compact", Procs, 1, bCompact, func(w *world, p, _ int) bool {
			if !w.active(p) || w.P[p].St != serving || w.verdict(p) != fine || w.S.Fence != 0 || w.ousted(p) {
				return false
			}
			return w.compact()
		}},
		opLook: {"look", Procs, 1, -1, func(w *world, p, _ int) bool {
			if !w.stopped(p) && !(w.P[p].Conn && w.P[p].St == other) {
				return false
			}
			return w.look(p)
		}},
		opAsk: {"ask", Procs, 1, bAsk, func(w *world, p, _ int) bool {
			pr := &w.P[p]
			if !w.stopped(p) || w.S.Fence == 0 || pr.W.Latch != w.S.Fence || pr.Word != 0 && pr.Word == w.S.Word || w.m.on(HealWait) && !pr.Waited {
				return false
			}
			w.contact(p)
			w.ask(p)
			return true
		}},
		opSpeak: {"speak", Procs, 1, -1, func(w *world, p, _ int) bool {
			pr := &w.P[p]
			if !w.stopped(p) || w.S.Fence == 0 || pr.W.Latch != w.S.Fence || w.S.Word == 0 && w.m.on(FreshWord) || w.said(p) {
				return false
			}
			// The look comes first: only a process that found the loss itself vouches for others.
			w.look(p)
			w.speak(p, &pr.W, pr.W.Lost)
			return true
		}},
		opHeal: {"heal", Procs, 1, -1, func(w *world, p, _ int) bool {
			if !w.stopped(p) || !w.mayHeal(p) {
				return false
			}
			w.contact(p)
			for l := range w.m.Lines {
				w.raiseLine(p, l)
			}
			w.lift(p)
			return true
		}},
		opRaiseLine: {"raise", Procs, Lines, bSlow, func(w *world, p, l int) bool {
			if l >= w.m.Lines || !w.stopped(p) || !w.mayHeal(p) || w.P[p].Raised&(1<<l) != 0 {
				return false
			}
			w.contact(p)
			w.raiseLine(p, l)
			return true
		}},
		opSeal: {"seal", Procs, 1, -1, func(w *world, p, _ int) bool {
			if !w.stopped(p) || !w.mayHeal(p) || !w.raised(p) || w.P[p].Seal != 0 || !w.m.on(SealLift) {
				return false
			}
			// Written after the last raise: a copy from before it, put back now, holds another seal or none,
			// and the lift fails.
			w.NextWord++
			w.S.Seal, w.P[p].Seal = w.NextWord, w.NextWord
			return true
		}},
		opCheck: {"check", Procs, 1, -1, func(w *world, p, _ int) bool {
			pr := &w.P[p]
			if !w.stopped(p) || !w.mayHeal(p) || pr.Seal == 0 || pr.Seal != w.S.Seal || pr.Checked == pr.Seal || !w.m.on(CheckLift) {
				return false
			}
			w.contact(p)
			// The store may have gone back between the last raise and the seal: only a reading after the seal tells.
			pr.Checked = pr.Seal
			for l := range w.m.Lines {
				if line := w.S.Lines[l]; line.Mark < max(w.S.Ev.Pairs[l].Mark, w.S.Ev.Floor[l]) || line.Tok <= w.S.Ev.Pairs[l].Tok {
					pr.Raised, pr.Seal, pr.Checked = 0, 0, 0 // all anew
				}
			}
			return true
		}},
		opLift: {"lift", Procs, 1, -1, func(w *world, p, _ int) bool {
			if !w.stopped(p) || !w.mayHeal(p) || !w.raised(p) || w.m.on(SealLift) && (w.P[p].Seal == 0 || w.P[p].Seal != w.S.Seal) || w.m.on(CheckLift) && w.P[p].Checked != w.S.Seal {
				return false
			}
			w.contact(p)
			w.lift(p)
			return true
		}},
		opSettle: {"settle", 2, Rows, bOperator, func(w *world, low, x int) bool {
			rows, _ := w.missing()
			if !w.heard() || rows&bit(uint8(x)) == 0 {
				return false
			}
			w.S.Ev.Settle |= bit(uint8(x))
			w.statement(low == 1)
			return true
		}},
		opAdopt: {"adopt", 2, 1, bOperator, func(w *world, low, _ int) bool {
			rows, joins := w.missing()
			if !w.heard() || rows == 0 && !joins {
				return false
			}
			w.S.Ev.Adopt = true
			w.statement(low == 1)
			return true
		}},
		opGive: {"give", Procs, 1, bOperator, func(w *world, p, _ int) bool {
			if w.P[p].up() || !w.P[p].W.Has || w.S.Fence == 0 || w.S.Ev.Said == 0 {
				return false
			}
			w.P[p].Row = none
			w.speak(p, &w.P[p].W, w.P[p].W.Lost || w.verdict(p) == behind)
			return true
		}},
		opWait: {"wait", Procs, 1, -1, func(w *world, p, _ int) bool { return w.wait(p) }},
		opCrash: {"crash", Procs, 1, bCrash, func(w *world, p, _ int) bool {
			if !w.P[p].up() {
				return false
			}
			w.dropCalls(p)
			w.unreachable(p)
			// Only the file survives. A number in hand is a gap, and a mark of silence that was not told stays untold.
			w.P[p] = Proc{Row: none, HoldL: none, PendL: none, Owes: none, Conn: true, W: w.P[p].W}
			return true
		}},
		opCut: {"cut", Procs, 1, bCut, func(w *world, p, _ int) bool {
			if !w.P[p].up() || !w.P[p].Conn {
				return false
			}
			w.unreachable(p)
			w.P[p].Conn = false
			return true
		}},
		opReturn: {"return", Procs, 1, -1, func(w *world, p, _ int) bool {
			if !w.P[p].up() || w.P[p].Conn {
				return false
			}
			w.P[p].Conn = true
			if w.m.on(WaitAnew) {
				w.begin(p)
			}
			return true
		}},
		opStart: {"start", Procs, 1, bStart, func(w *world, p, _ int) bool {
			if w.P[p].up() || !w.P[p].W.Has || w.NextRow == Rows {
				return false
			}
			w.start(p)
			return true
		}},
		opStartCopy: {"start-copy", Procs, 1, bStart, func(w *world, p, _ int) bool {
			if w.P[p].up() || !w.Dir.Has || w.Dir == w.P[p].W || w.NextRow == Rows {
				return false
			}
			// A quick return asks for the boot of the machine that left: the copy runs on another.
			w.P[p].W, w.P[p].Quick = w.Dir, false
			w.start(p)
			return true
		}},
		opStartFresh: {"start-fresh", Procs, 1, bFresh, func(w *world, p, _ int) bool {
			if w.P[p].up() || w.S.Fence != 0 || w.NextRow == Rows {
				return false
			}
			w.P[p].W, w.P[p].Quick = Witness{}, false
			w.start(p)
			return true
		}},
		opCopy: {"copy-disk", Procs, 1, bCopy, func(w *world, p, _ int) bool {
			if !w.P[p].W.Has || w.Dir == w.P[p].W {
				return false
			}
			w.Dir = w.P[p].W
			return true
		}},
		opSnap: {"copy", 1, 1, bSnap, func(w *world, _, _ int) bool {
			if int(w.NSnap) == len(w.Snaps) {
				return false
			}
			w.Snaps[w.NSnap] = w.S
			w.NSnap++
			return true
		}},
		opRestore: {"put-back", 1, 2, bRestore, func(w *world, _, i int) bool {
			if i >= int(w.NSnap) || w.S == w.Snaps[i] {
				return false
			}
			// The primary's identity is no row of the store: data put back under a running server raise no question.
			prim := w.S.Prim
			w.S = w.Snaps[i]
			w.S.Prim = prim
			w.putBack()
			return true
		}},
		opFailover: {"failover", 1, 2, bFailover, func(w *world, _, i int) bool {
			if i >= int(w.NSnap) {
				return false
			}
			w.S = w.Snaps[i]
			w.NextPrim++
			w.S.Prim = w.NextPrim
			w.putBack()
			for p := range w.P { // a changed primary shows
				w.P[p].Excused = false
			}
			return true
		}},
		opWipe: {"wipe", 1, 1, bWipe, func(w *world, _, _ int) bool {
			w.S = Store{Prim: w.S.Prim}
			w.putBack()
			return true
		}},
	}
	for o := range nOps {
		for p := range ops[o].subj {
			for a := range ops[o].args {
				all = append(all, Step{o, uint8(p), uint8(a)})
			}
		}
	}
}
