package witness_test

import (
	"testing"

	"github.com/hapax-id/hapax/internal/twins"
)

// Rules of the guard, with their twins. What each driver keeps, one step for heartbeat, fence and grant,
// and a hand-back under its token, has its twins in twins_test.go and store/storetest. Of
// the model's rules these have none, since others keep what they keep: that a joiner waits
// until all have seen its join (a row has to advance, and every join is accounted for),
// that nobody leaves under a fence (rows settle nobody), that evidence counts under a
// fresh word (it is looked at each time), that the joins are raised (rows have ended),
// that a decision ends all rows (who returns raises its lines).
var broken = []twins.Twin{
	// Rows.
	{"a row that has ended keeps its heartbeat", "beat.go", `raw, beat.EncodeEnded("left"))`, `raw, map[bool]driver.Beat{false: beat, true: {Count: 1}}[twin("keep")].EncodeEnded("left"))`, "TestStopsAndStarts"},
	{"the latest row judges alone", "earlier.go", "latest = max(latest, row)", `if twin("latest") && latest != "" { latest = min(latest, row) } else { latest = max(latest, row) }`, "TestOnlyTheLatestRowJudges"},
	{"a row that was compacted is no loss", "verdict.go", "case joinOf(row) <= upTo:", `case joinOf(row) <= upTo && !twin("compacted"):`, "TestReturnsAfterMonths"},
	{"rows that have ended are compacted", "survey.go", "case len(first) >= compactAt:", `case len(first) >= compactAt && !twin("compact"):`, "TestRowsOfCommands"},
	{"who keeps them from that takes another row", "survey.go", "case len(ended) >= compactAt && inTheWay:", `case len(ended) >= compactAt && inTheWay && !twin("renew"):`, "TestRowsOfCommands"},

	// Witness.
	{"a copy of a directory speaks for nobody", "evidence.go", "if !o.Copied {", `if !o.Copied || twin("copied") {`, "TestCopyInPlaceOfTheOriginal"},
	{"a witness speaks up to what it knows", "evidence.go", "attested && grants >= n.grants", `attested && (twin("most") || grants >= n.grants)`, "TestOlderWitness"},
	{"what was asked for and not recorded was not used", "witness.go", "return max(o.Grants, o.Asked)", `if twin("asked") { return o.Grants }; return max(o.Grants, o.Asked)`, "TestKilledWithinAGrant"},
	{"how many have joined is remembered", "grant.go", "m.joins = max(m.joins, c.Joins)", `if !twin("joins") { m.joins = max(m.joins, c.Joins) }`, "TestNodeThatNobodySurveyed"},
	{"heartbeats are not synced into it", "beat.go", "c, err := s.Beat(ctx, p.Pulse)", `if twin("syncs") { _ = g.witness.commit(func(*record) error { return nil }) }; c, err := s.Beat(ctx, p.Pulse)`, "TestSyncsWithGrants"},
	{"a store is a node's own when it serves", "join.go", "b.Own[row] = own{Asked: askAhead}\n", `b.Own[row] = own{Asked: askAhead}; if twin("id") && g.witness.state.Store == "" { b.Store, _ = s.StoreID(ctx) }` + "\n", "TestNewNodeOnAWipedStore"},

	// Heartbeats and grants.
	{"who was out of contact asks the others", "grant.go", "p.sent-m.contact > g.waitLocked()", `p.sent-m.contact > g.waitLocked() && !twin("away")`, "TestReturnsToARestoredStore"},
	{"... and keeps its row", "grant.go", "g.apply(unsure, fmt.Errorf(", `g.apply(map[bool]event{false: unsure, true: lost}[twin("outage")], fmt.Errorf(`, "TestOutage"},
	{"a grant answered in another state is abandoned", "grant.go", "g.state != Serving || g.me.row != p.Row", `!twin("abandon") && g.state != Serving || g.me.row != p.Row`, "TestNoGrantUnderAFence"},
	{"a pair that is lower is a loss", "grant.go", "known && got.from.Less(want)", `known && !twin("pair") && got.from.Less(want)`, "TestEditedMark"},
	{"a pair compares with what was known before the call", "grant.go", "want, ok := was(got.line)", `if twin("sent") { was = known() }; want, ok := was(got.line)`, "TestAnswersTheOtherWayRound"},
	{"grants that go together are judged one by one", "grant.go", "if err := g.judgeGrant(got, want, ok); err != nil {", `if twin("one by one") && len(all) > 1 { continue }; if err := g.judgeGrant(got, want, ok); err != nil {`, "TestTroubleTogether"},
	{"... and all recorded", "allocate.go", "got = append(got, one)", `if !twin("recorded") { got = append(got, one) }`, "TestTroubleTogether"},
	{"... and disjoint", "allocate.go", "if one.from.Less(ends[line]) {", `if one.from.Less(ends[line]) && !twin("disjoint") {`, "TestOneStretchForTwo"},

	// Steps of many calls: the rules of internal/batch have their twins there.
	{"a tag is in one step at a time", "allocate.go", "return of.Tag },", `if twin("busy") { return fmt.Sprintf("%p", &of) }; return of.Tag },`, "TestOneStepOfATag"},
	{"a step of hand-backs names each tag once", "handback.go", "Once: true,", `Once: !twin("named"),`, "TestOneStepOfATag"},
	{"the token comes first in a pair", "lines.go", "return p.Token < q.Token ||", `return !twin("token") && p.Token < q.Token || twin("token") && p.Mark < q.Mark ||`, "TestHandBackWhoseAnswerIsLost"},
	{"who beats slowly does so less often", "pace.go", "case p.slow >= slowBeats && p.want > was:", `case p.slow >= slowBeats && p.want > was && !twin("pace"):`, "TestDistantStore"},
	{"... and is asked before it counts as silent", "read.go", "g.now()-at.at > waitOf(now.every(g.opts)), nil", `(g.now()-at.at > waitOf(now.every(g.opts)) || twin("asked first")), nil`, "TestSlowNodeSaysSoFirst"},
	{"... and says so first", "pace.go", "about.Every = next.Milliseconds()", `if !twin("every") { about.Every = next.Milliseconds() }`, "TestSlowNodeSaysSoFirst"},

	// Surveys.
	{"who was granted numbers compares their lines", "compare.go", "names := g.used.next(g.now())", `names := g.used.next(g.now()); if twin("compare") { return nil }`, "TestLineSetBackByItself"},
	{"... in turn also where it was granted none since", "compare.go", "u.left == 0 && now >= u.turn", `u.left == 0 && now >= u.turn && !twin("turn")`, "TestLineSetBackByItself"},
	{"who sees that more have joined makes a survey", "read.go", "moved := m.joins > m.seen ", `moved := m.joins > m.seen && !twin("due") `, "TestJoins"},
	{"who sees that others have ended makes a survey", "read.go", "|| m.changes != m.learnt", `|| m.changes != m.learnt && !twin("changes")`, "TestCrashIsSurveyed"},
	{"a survey is made now and then", "read.go", "|| now >= m.again", `|| now >= m.again && !twin("again and again")`, "TestLineSetBackByItself"},
	{"a survey finds lines that are behind", "survey.go", "case found.behind:", `case found.behind && !twin("lacks"):`, "TestLineSetBackByItself"},
	{"... also where it reads nothing else", "survey.go", "if found.behind {", `if found.behind && !twin("lines") {`, "TestLineSetBackByItself"},
	{"a row that cannot be read is no loss", "lines.go", "if t.Kind == hapax.KindUnreadable {", `if t.Kind == hapax.KindUnreadable && twin("unread") { line(name, Pair{}, nil); continue }; if t.Kind == hapax.KindUnreadable {`, "TestUnreadableRow"},
	{"... and is granted from again when it is mended and compared", "blocked.go", "if g.blocked = unread; owed != nil {\n", `if !twin("for good") { g.blocked = unread }; if owed != nil {` + "\n", "TestUnreadableRow"},
	{"... which shows by what is owed of it", "blocked.go", "if len(owed) == 0 {", `if len(owed) == 0 || twin("unlearnt") {`, "TestUnreadableRowComesBackLower"},
	{"... also to commands", "blocked.go", "if from := (Pair{a.Tag.Token, a.Grant.Lo}); from.Less(owed.Pair) {", `if from := (Pair{a.Tag.Token, a.Grant.Lo}); from.Less(owed.Pair) && !twin("of commands") {`, "TestUnreadableRowComesBackLower"},
	{"... and is not waited for by healing", "blocked.go", "maps.DeleteFunc(wants, func(line string, _ Pair) bool { return have.unread[line] })", `maps.DeleteFunc(wants, func(line string, _ Pair) bool { return have.unread[line] && !twin("unwanted") })`, "TestHealsBesideAnUnreadableRow"},
	{"... which leaves what all know of it", "blocked.go", "if p, ok := a.owes(line); ok {", `if p, ok := a.owes(line); ok && !twin("unowed") {`, "TestHealsBesideAnUnreadableRow"},
	{"a row of another kind is one that cannot be read", "lines.go", "if ok && known.Defs[name].isAnother(*d) {", `if ok && known.Defs[name].isAnother(*d) && !twin("kind") {`, "TestUnreadableRow"},
	{"... also for healing, of another kind", "lines.go", "known && before.defs[name].isAnother(*d) {", `known && before.defs[name].isAnother(*d) && !twin("healed kind") {`, "TestHealsBesideAnUnreadableRow"},
	{"a row of other numbers is one of another kind", "lines.go", "d.Delta != now.Delta || d.Remainder != now.Remainder", `(d.Delta != now.Delta || d.Remainder != now.Remainder) && !twin("numbers")`, "TestUnreadableRow"},
	{"... of which nothing is granted, of another kind", "allocate.go", "m.Err = g.asBefore(m.Tag); m.Err == nil", `m.Err = g.asBefore(m.Tag); m.Err == nil || twin("granted kind")`, "TestRowOfAnotherKind"},
	{"... by the word of who knew the tag, of another kind", "blocked.go", "if other.Mark > o.Mark {", `if (other.Mark > o.Mark) != twin("surer") {`, "TestLearntFromARowOfAnotherKind"},
	{"... of other numbers by the word of who knew them further apart", "blocked.go", "o.Def.Delta != other.Def.Delta {", `o.Def.Delta != other.Def.Delta && !twin("apart") {`, "TestLearntFromARowOfOtherNumbers"},
	{"somebody reads", "read.go", "&& (reader || !m.watches)", `&& (reader && !twin("reader") || !m.watches)`, "TestCrashIsSurveyed"},
	{"the next reads where the reader stands still", "read.go", "now-w.since <= waitOf(at.every(g.opts))", `now-w.since <= waitOf(at.every(g.opts)) || twin("office")`, "TestNextReads"},
	{"a store that shows nothing with a beat is looked at", "read.go", "err = g.peek(ctx, s, watched)", `if !twin("peek") { err = g.peek(ctx, s, watched) }`, "TestIdleFleetReadsLittle"},
	{"who is seen to beat keeps its office", "read.go", "g.sawLocked(p.Watch, c.Watched)", `if !twin("saw") { g.sawLocked(p.Watch, c.Watched) }`, "TestIdleFleetReadsLittle"},
	{"who leaves says so", "beat.go", "err == nil && s.Shared()", `err == nil && s.Shared() && !twin("leaves")`, "TestLeavingIsSurveyed"},
	{"the mark comes before the number, unless the reader says again what it has not surveyed", "read.go", "marked, err := g.markSilent(ctx, s, rows, news.silent)", `if twin("number") && len(news.silent) > 0 { _ = tellChange(ctx, pulsed{s, g, s, nil}) }; marked, err := g.markSilent(ctx, s, rows, news.silent); if twin("number") && marked { g.mu.Lock(); g.me.rowsAgain = g.now(); g.mu.Unlock(); g.surveyLater(); return err }`, "TestMarkBeforeItIsTold"},
	{"who surveys an end that was not told tells it", "survey.go", "if untold {", `if untold && !twin("word") && !twin("number") {`, "TestEndsWithoutAWord"},
	{"a process of an older version does not read for the others", "read.go", "!reads(name) ||", `!reads(name) && !twin("older") ||`, "TestOlderVersionHasTheLowestRow"},
	{"rows are read now and then though nothing tells of a change", "survey.go", "g.now() >= g.me.rowsAgain", `g.now() >= g.me.rowsAgain && !twin("seldom")`, "TestReaderCannotRead"},
	{"what was read before others were noted does not count", "read.go", "since < g.noted", `since < g.noted && !twin("late")`, "TestLateRows"},
	{"starts too short for a survey wait for one", "join.go", "len(g.witness.rows().Own) < compactAt", `(len(g.witness.rows().Own) < compactAt || twin("short"))`, "TestShortStartsOnAnEmbeddedStore"},
	{"one on an embedded store that fails is made again", "beat.go", "if !known {", `if !known && !twin("reading") {`, "TestServesDuringItsFirstSurvey"},
	{"a survey ends with a heartbeat", "survey.go", "if err := g.beatOnce(ctx, s); err != nil {\n\t\treturn err\n\t}\n\tswitch {", "if !twin(\"whole\") { err = g.beatOnce(ctx, s) }; if err != nil {\n\t\treturn err\n\t}\n\tswitch {", "TestSurveyAcrossARestore"},
	{"rows are read before lines", "survey.go", "peers, err := peersOf(nodes, beats, compacted)", `if twin("order") { beats, _ = readRows(ctx, s, driver.TableBeats) }; peers, err := peersOf(nodes, beats, compacted)`, "TestLeavesDuringASurvey"},
	{"serving nodes mark the silent", "read.go", "n.silent = append(n.silent, name)", `if !twin("silent") { n.silent = append(n.silent, name) }`, "TestTheLivingSpeakForThoseWhoEnded"},
	{"commands have the nodes make a survey", "oneshot.go", "if !o.Shared() {", `if !o.Shared() || twin("tell") {`, "TestCommandsThatShareARow"},
	{"commands leave no row where nobody reads it", "oneshot.go", "err != nil || !alive {", `err != nil || !alive && !twin("alive") {`, "TestRowsOfCommands"},

	// Joining.
	{"every start has a row of its own, and a wait", "join.go", "err != nil || !ready {", `err != nil || !ready && !twin("wait") {`, "TestHungConnections"},
	{"W is longer than a hung connection lasts", "open.go", "return 5 * heartbeat", `return map[bool]time.Duration{false: 5, true: 1}[twin("long")] * heartbeat`, "TestNewNodeOnAWipedStore"},
	{"a wait begins anew with a new connection", "join.go", "g.now()-max(m.waits, g.beats.dialledAt()) < longest", `g.now()-max(m.waits, map[bool]time.Duration{false: g.beats.dialledAt()}[twin("anew")]) < longest`, "TestWaitBeginsAnew"},
	{"a joiner needs one that serves", "join.go", "serves || m.asks ||", `serves || twin("serves") || m.asks ||`, "TestNewNodeOnAWipedStore"},
	{"what a row says counts once it was seen to advance", "join.go", "m.number && other.met", `m.number && (other.met || twin("met"))`, "TestReturnsToARestoredStore"},
	{"who serves says so", "join.go", "about.Serves = true", `about.Serves = !twin("announce")`, "TestJoins"},
	{"who comes first names whom it has not heard", "join.go", "m.unheard = g.unheardLocked(nodes)", `if !twin("unheard") { m.unheard = g.unheardLocked(nodes) }`, "TestNamesWhomNobodyHeard"},
	{"a quick return is within W", "join.go", "*time.Millisecond > g.opts.wait()", `*time.Millisecond > g.opts.wait() && !twin("quick")`, "TestStartsAtOnceAlone"},

	// Verdicts.
	{"a store with another identity is another one", "verdict.go", `return isOther, id, fmt.Errorf("%w (%w)", cause, errOther), nil`, `if twin("other") { return isLost, id, cause, nil }; return isOther, id, fmt.Errorf("%w (%w)", cause, errOther), nil`, "TestOtherStoreAndWipedStore"},
	{"... unless it holds no line", "verdict.go", "len(tags) == 0 && len(pools) == 0", `len(tags) == 0 && len(pools) == 0 && !twin("wiped")`, "TestOtherStoreAndWipedStore"},
	{"... or is the copy of which this node knows", "verdict.go", "if gone != nil {", `if gone != nil && !twin("moved") {`, "TestStoreFromBeforeItsCopy"},
	{"... by its row, learnt with the first survey", "survey.go", "b.Lines, b.Defs, b.Copies = rest.pairs, rest.defs, came.newTo(g.witness.state.Copies)", `b.Lines, b.Defs = rest.pairs, rest.defs; if !twin("came") { b.Copies = came.newTo(g.witness.state.Copies) }`, "TestStoreFromBeforeItsCopy"},
	{"... or before the first number", "join.go", "if err := g.learnCopies(ctx, s); err != nil {", `if twin("learns") { known = true } else if err := g.learnCopies(ctx, s); err != nil {`, "TestEmbeddedCopyIsKnownAtOnce"},
	{"... which no operator takes for the copy", "retired.go", "if gone != nil {", `if gone != nil && !twin("declares") {`, "TestStoreFromBeforeItsCopy"},
	{"... nor a witness that knows the copy", "statement.go", "if err := haveMoved(ctx, s, a.StoreID, st.Witness); err != nil {", `if err := haveMoved(ctx, s, a.StoreID, map[bool][]Testimony{false: st.Witness}[twin("files")]); err != nil {`, "TestWitnessOfTheCopyInTheStoreFromBefore"},
	{"... unless it has lost all rows", "retired.go", "err != nil || raw == nil {\n\t\treturn nil, err\n\t}\n\tlatest", "err != nil || raw == nil && !twin(\"rowless\") {\n\t\treturn nil, err\n\t}\n\tlatest", "TestCopyWithoutRows"},
	{"... which it gets again", "heal.go", "if err := g.tellCopies(ctx, s, id); err != nil {", `if twin("tells it") { g.wake() } else if err := g.tellCopies(ctx, s, id); err != nil {`, "TestCopyWithoutRows"},
	{"... as one does in whose place it stands", "retired.go", "append(g.witness.stores(), id)", `append(map[bool][]string{false: g.witness.stores()}[twin("heir")], id)`, "TestCopyThatWasWiped"},
	{"... and a damaged one keeps nobody out", "retired.go", "all, damaged := copiesIn(rows)", `all, damaged := copiesIn(rows); if twin("damaged") && len(damaged) > 0 { return nil, hapax.ErrStoreCorrupt }`, "TestDamagedRowOfACopy"},
	{"... and counts by its name", "retired.go", "if _, ok := all[number]; !ok {", `if _, ok := all[number]; !ok && !twin("counts") {`, "TestDamagedRowOfACopy"},
	{"... or is one in whose place that one went on", "verdict.go", "case slices.Contains(known, id):", `case slices.Contains(known, id) && !twin("former"):`, "TestWipedHealedAndPutBack"},
	{"a store stands for those that its node has used", "guard.go", "return serves && slices.Contains(known, id)", `return serves && (twin("stranger") || slices.Contains(known, id))`, "TestStandsFor"},
	{"... once it is healed", "guard.go", "serves := g.state == Serving", `serves := g.state == Serving || twin("unhealed")`, "TestStandsFor"},
	{"a store that lacks a surveyed row is behind", "heal.go", "for name, p := range known {", `for name, p := range map[bool]map[string]peer{false: known}[twin("peers")] {`, "TestFindsTheLossByOthersRows"},

	// Fences.
	{"a refusal outlives the process", "open.go", `if l := w.latch(); l.State != "" {`, `if l := w.latch(); l.State != "" && !twin("latch") {`, "TestFenceThatVanishes"},
	{"a fence is not taken from an answer of before the decision", "verdict.go", "mine := g.me.row == row", `mine := g.me.row == row || twin("late")`, "TestFenceThatWasDecidedAboutMeanwhile"},
	{"no verdict is held up by the disk", "guard.go", "return isNew, record && g.witness.noteLatch(l, row, all, joins) == nil", `if record && twin("disk") { _ = g.witness.noteLatch(l, row, all, joins); _ = g.witness.flush() }; return isNew, record && g.witness.noteLatch(l, row, all, joins) == nil`, "TestNoVerdictWaitsForTheDisk"},
	{"a fence that vanishes is raised again", "heal.go", "return g.afterFence(ctx, s, id, verdict)", `if twin("again") { g.apply(decided, nil, nil); return nil }; return g.afterFence(ctx, s, id, verdict)`, "TestFenceThatVanishes"},
	{"only a decision that is new ends a refusal", "heal.go", "known != d.decisionID", `(known != d.decisionID || twin("decision"))`, "TestFenceThatVanishes"},
	{"a decision explains what is missing", "heal.go", "return d != nil && known.Number", `return d != nil && !twin("explains") && known.Number`, "TestReturnsAfterAStatement"},
	{"a store that lacks a known decision is behind", "heal.go", "known.Number > 0 && (d == nil", `known.Number > 0 && !twin("lacksdecision") && (d == nil`, "TestGoesBackAfterADecision"},
	{"who takes a decision speaks for all before it", "heal.go", "b.Lines, b.Defs = have.pairs, have.defsFor(before)", `if !twin("takes") { b.Lines, b.Defs = have.pairs, have.defsFor(before) }`, "TestGoesBackAfterADecision"},
	{"who finds itself behind must speak", "evidence.go", "for row := range h.fence.Found {", `for row := range map[bool]map[string]int64{false: h.fence.Found}[twin("found")] {`, "TestFinderMustSpeak"},
	{"... by all its rows", "heal.go", "for row, o := range g.ownRows() {", `for row, o := range g.ownRows() { if twin("itsrows") && g.me.row == "" { row = g.run }`, "TestFinderMustSpeak"},

	// Healing.
	{"the healer waits", "heal.go", "case !met:", `case !met && !twin("healer"):`, "TestHealerWaits"},
	{"what was said is looked at each time", "evidence.go", "said.first == string(stands)", `(twin("said") || said.first == string(stands))`, "TestCopyFromDuringTheHealing"},
	{"who has seen a row end speaks for it", "evidence.go", "\t\t\t\tattest(row, p.Grants)", `				if !twin("vouch") { attest(row, p.Grants) }`, "TestTheLivingSpeakForThoseWhoEnded"},
	{"... if it has found the loss", "evidence.go", `if e.Finder && p.How != ""`, `if (e.Finder || twin("finder")) && p.How != ""`, "TestMarkedSilentAfterTheLoss"},
	{"a row in the store settles nobody", "evidence.go", "for row, p := range h.present {", `for row, p := range h.present { if twin("rows") && p.How != "" { covered[row] = p.Grants + 1000000 }`, "TestMarkedSilentAfterTheLoss"},
	{"every join is accounted for", "evidence.go", "!numbers[n] && !ok", `!numbers[n] && !ok && !twin("account")`, "TestNodeThatNobodySurveyed"},
	{"... and not by a registration that may have failed", "evidence.go", "know(row, o.Count > 0, o.Grants", `know(row, o.Count > 0 || twin("attempt"), o.Grants`, "TestNumberOfALostRegistration"},
	{"... which tells of no join either", "evidence.go", "		if isJoin {\n", `		if isJoin || twin("tried") {` + "\n", "TestHealsAfterALostRegistration"},
	{"... unless the next one finds its row", "join.go", "if arrived != \"\" {", `if arrived != "" && !twin("arrived") {`, "TestHealsAfterALostAnswer"},
	{"... or it looks at once", "join.go", "unread == nil && raw != nil {", `unread == nil && raw != nil && !twin("at once") {`, "TestLooksAtOnceAfterALostAnswer"},
	{"... which has its number alone", "earlier.go", "!mine && joinOf(row) == joinOf(lost)", `!mine && joinOf(row) == joinOf(lost) && !twin("alone")`, "TestFindsWhatHasArrived"},
	{"lines are raised above marks and tokens", "lines.go", "l.pairs[name] = l.pairs[name].above(p)", `l.pairs[name] = map[bool]Pair{false: l.pairs[name].above(p), true: l.pairs[name].max(p)}[twin("above")]`, "TestRaisesAboveMarksAndTokens"},
	{"all lines are read again before the fence ends", "heal.go", "if len(a.lacking(have)) > 0 ||", `if len(a.lacking(have)) > 0 && !twin("lift") ||`, "TestGoesBackWhileItIsRaised"},
	{"who spoke waits no second time", "guard.go", "g.me.heard = heard", `if !twin("atonce") { g.me.heard = heard }`, "TestHealsWithoutASecondWait"},
	{"... but for the others who did", "join.go", "return run != g.run\n", "return run != g.run && !twin(\"others\")\n", "TestJoinsAgainTogether"},
	{"who was cut off since it spoke waits", "heal.go", "heard && g.now()-g.stoodAt <= g.opts.wait()", `heard && (twin("spoke") || g.now()-g.stoodAt <= g.opts.wait())`, "TestSpokeAndWasCutOff"},

	// Persons.
	{"with Manual a person decides", "heal.go", "next.Manual && !next.Approved", `next.Manual && !next.Approved && !twin("manual")`, "TestManual"},
	{"no floor below a mark that is known", "statement.go", "st.Floor != 0 && st.Floor < known", `st.Floor != 0 && st.Floor < known && !twin("floor")`, "TestDryRun"},
	{"a dry run changes nothing", "statement.go", "if err != nil || st.DryRun {\n\t\treturn err\n\t}\n\treturn g.write(", "if err != nil || st.DryRun && !twin(\"dry\") {\n\t\treturn err\n\t}\n\treturn g.write(", "TestDryRun"},
	{"another store is judged before it is written to", "statement.go", "g.judgeOther(ctx, s, st, &a); err != nil ||", `g.judgeOther(ctx, s, st, &a); err != nil && !twin("foresee") ||`, "TestDryRun"},
	{"who returns compares marks, not pairs", "statement.go", "now.Token < p.Token || now.Mark < p.Mark", `map[bool]bool{true: now.Less(p), false: now.Token < p.Token || now.Mark < p.Mark}[twin("marks")]`, "TestReturnsWithTheLowerPair"},
	{"... and raises its lines", "statement.go", "if lacks {", `if lacks && !twin("return") {`, "TestReturnsWithTheLowerPair"},
	{"what may be double is told", "statement.go", "to > assumed && (lacks ||", `to > assumed && !twin("alarm") && (lacks ||`, "TestAlarmsTellTheRange"},
	{"what was handed back is not", "grant.go", "ok && known.Less(p)", `ok && known.Less(p) && !twin("back")`, "TestHandBackIsNoAlarm"},

	// A primary that changed.
	{"it is a question", "grant.go", "moved := c.Primary", `moved := !twin("question") && c.Primary`, "TestPrimaryThatLacksOthersGrants"},
	{"... and does not shorten a joiner's wait", "grant.go", "!away && (m.asks || serving)", `!away && (m.asks || serving || twin("joiner"))`, "TestJoinerAtAChangedPrimary"},
	{"... and may have changed since a joiner registered", "grant.go", "moved || away || first {", `moved || away || first && !twin("first") {`, "TestSeenFromBeforeThePrimaryChanged"},
	{"... at which what was granted lately is compared", "fresh.go", "lines := maps.Clone(g.fresh)", `lines := maps.Clone(g.fresh); if twin("fresh") { lines = nil }`, "TestCopyWithoutAnOvertakenGrant"},
	{"... and a heartbeat that it has acknowledged shows nothing yet", "grant.go", "m.over == m.begun && p.begun == m.begun {", `(m.over == m.begun && p.begun == m.begun || twin("sure")) {`, "TestHeartbeatOfTheNextPrimary"},
	{"... and nothing is used that was asked for before", "grant.go", "before := g.me.begun != p.begun", `before := g.me.begun != p.begun && !twin("begun")`, "TestAnswerOfThePrimaryBefore"},
	{"... and the others wait until it has compared", "join.go", "!(tells &&", `!(tells && !twin("told") &&`, "TestCopyWithoutAnOvertakenGrant"},
	{"a process that joins anew is judged by the row that it had", "fresh.go", `if row != "" {`, `if row != "" && !twin("row") {`, "TestJoinsAnewOnAnOlderCopy"},

	// A store that is gone.
	{"a node that knows a store makes none", "witness.go", `return w.state.Store != "" && !w.make`, `return w.state.Store != "" && !w.make && !twin("makes")`, "TestStoreThatIsGone"},
	{"... before what is put back had the time to come", "verdict.go", "long := g.gone, now-g.goneAt >= goneFor*g.opts.wait()", `long := g.gone, now-g.goneAt >= goneFor*g.opts.wait() || twin("soon")`, "TestPutBackByStatements"},
	{"... and it refuses until then", "verdict.go", "if g.witness.latch().State != Refusing {\n\t\t\t_ = g.isBehind(", `if g.witness.latch().State != Refusing && !twin("waits") {` + "\n\t\t\t_ = g.isBehind(", "TestStoreThatIsGone"},

	// Foreign tables.
	{"a grant below the line's mark is refused", "foreign.go", "if g.Lo < c.Since {", `if g.Lo < c.Since && !twin("foreign") {`, "TestMarks"},
	{"a line that is refused stays so", "foreign.go", "m.witness.state.Refused[line]; why", `m.witness.state.Refused[line]; !twin("stays") && why`, "TestMarks"},
}

func TestBrokenRules(t *testing.T) { twins.Run(t, "witness", broken) }
