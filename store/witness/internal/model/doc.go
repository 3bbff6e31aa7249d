// Package model is an explicit-state model of the guard of a shared store
// (package witness): what it does about a store that goes back, in steps small
// enough that every order of them can be tried. Only its own tests use it.
//
// A [State] holds a store, two copies of it, three machines with a disk and a
// process each, one copied directory and two calls that are under way. A [Step]
// is what a process, the store, an operator or fate does next; [Model.Apply]
// does it and says what it violates. [Model.Search] goes through all states
// breadth first, so that the first trace it finds is a shortest one;
// [Model.Walk] walks at random, from a seed, and shrinks what it finds.
//
// # What is judged
//
//   - No number twice. A number is used when a process that serves has the
//     answer, until it sends a hand-back. A healing below a number that is in
//     use is found at once, before anybody is granted it again.
//   - No fence where nothing was lost, or where a healing explains what is missing.
//   - Wherever every possible witness is alive and in reach, or spoken for,
//     everyone serves after a bounded number of fair rounds, without an operator
//     ([Model.Judgeable], [Model.Fair]).
//
// What may go wrong all the same is the list of the guard's documentation, told
// by these conditions and no wider ones:
//
//   - A process whose last acknowledged beat, join and decision are all in the
//     copy that was put back is granted a number, before a fence stands and
//     while it was not out of contact for W ([Proc].Excused, set by putBack).
//   - A process begins to serve after a loss, and no process that knows more than the
//     store was in reach throughout its wait (excuse). Rows that it marks
//     silent then, and a store ID that it makes, hide the loss for good.
//   - A call sent before the store was put back is carried out after it, with
//     no fence in between ([Call].Across).
//   - A healing does not know a row: its join number lies above all that anybody
//     knows, or another row of a branch that was lost bears it as well.
//   - A witness older than the node's last grant speaks, and nobody, and no row
//     that it met, tells that it is older.
//   - An operator's floor is too low.
//
// # What is modelled
//
// Rows for each start with count, grants asked for and joins seen; tombstones
// and their compaction; witnesses with the counts of their own rows, the highest
// pair of each line, joins, surveys and the latest decision; beats by compare,
// several calls under way at once, carried out and answered in any order, late,
// repeated or never; grants in one step with beat and fence check, and split
// between two beats; surveys in one step and in two halves; joins that wait for
// rows that have seen them or for W, quick returns; W as the time in which
// each process that was in reach all along has met the store, and everyone else has
// been out of contact for W; hung connections; fences that are latched, vanish
// and come back; healing in one step and line by line; operators' statements
// for one row and for all, with right floors and low ones, and witness files
// given; copied directories; stores put back, failed over to a replica that
// lacks the end, and wiped, at any moment and twice; two lines.
//
// # What is not
//
// Clocks (W is an order of events, so a clock that runs wrong is not seen), two
// primaries at once, replicas that do not keep the order of commits, one-shot
// commands, foreign tables and embedded stores, settings in which a person heals,
// a lost answer of a registration, more than one copied directory at a time, a
// store that is put back without breaking connections. A grant is one number.
//
// # Rules
//
// Each [Rule] can be broken, and TestTwins has a trace for each that ends badly
// without it and well with it, but for those that it names as spare: the model
// goes well without one as long as it has the others.
//
// TestSearch and TestWalks take flags, so that
//
//	go test ./store/witness/internal/model -run TestWalks -for 1h -seed 1 -timeout 0
//	go test ./store/witness/internal/model -run TestSearch -states 3000000 -timeout 0
//	go test ./store/witness/internal/model -run TestSearch -budget beat=2,grant=2,copy=1,put-back=1,ask=1 -without HealWait
//
// go further than a test run does. A search needs about 150 bytes for a state
// and 1.5 kB for one of its widest level.
package model
