// Package witness guards a store against its own past: it notices a store that
// was restored from a backup, replaced, wiped or edited, sees to it that nobody is
// granted anything meanwhile, and heals it where every possible witness has spoken.
//
// Open wraps a store for programs that embed the library; Guard and GuardOpened
// for those that keep the witness open themselves, as servers do.
//
// # How a store that went back is found
//
// Each start of a process joins the store with a row of its own, its heartbeat,
// which only it advances: at least every second, and in the same transaction as
// each grant. A row behind the beat that the store has acknowledged is proof that
// the store went back. The witness, a small file outside the store that is synced
// before a grant is used, remembers the rows and how far each line was granted.
//
// A line's pair of fencing token and mark only grows: a hand-back lowers the mark
// and raises the token. So a lower pair is proof as well, and no request of a
// client can make a store look older than it is. A node compares the tags that it was
// granted numbers of since its last heartbeat, some at a time, all of these in turn once a
// minute, and all lines with each survey.
//
// A heartbeat is one step of the store, which brings the process's row, the fence, how many
// have joined and a number that moves after somebody has left or was marked silent. Rows are
// read where one of the two numbers has moved, and by one process, see read.go.
//
// # States
//
//	          every living node has met the store
//	joining ------------------------------------------> serving
//	 ^  ^ ^   <------------------------------------------ |  |
//	 |  | |        out of contact, another primary,       |  |
//	 |  | |        ended by others                        |  |
//	 |  | |                                               |  |
//	 |  | | the decision names the fence      fence found |  | lacks what was
//	 |  | +------------------------- fenced <------------+  | acknowledged
//	 |  |                              |                     |
//	 |  |                              | lacks it too        v
//	 |  |                              +-----------------> refusing
//	 |  +---------------------------------------------------+
//	 |            the decision names the fence
//	 any of them: closed -> leaving -> left
//
// The table of all states and events is in state.go.
//
// # Joining
//
// A process registers and uses no grant until every row that has neither left nor
// fallen silent says that it has seen this join, with a heartbeat that was seen to come,
// and one of those serves: two beats where all are alive. Where one does not, or nobody
// serves, it waits until a living node must have met the store again: Options.wait, 5 s
// at the defaults. A node that observes others join, leave or fall silent reads first the rows
// and then all lines into its witness, and attests from then on for those that have ended.
//
// Processes that were heard for the decision about a fence wait for each other alone. On a store
// that nobody shares a process waits for nobody, and reads all lines beside its first grants.
//
// A process that was out of contact for that long, or finds another primary, asks in the
// same way and keeps its row, unless others have ended that: so all go on within beats of
// the return of a store that was away. At another primary, which a server that started anew
// is, too, it compares first its latest grants, and reports that it has.
//
// A node that knows a store makes none where there is none: it refuses, and waits for one to be
// put back, before it makes one.
//
// # Healing
//
// A node that finds the store behind raises a fence in it, which everybody obeys. Then
// one of the living asks, and all processes with a witness give it as evidence.
// When every row that anybody knows is attested, by its own process, by one that itself
// found the loss and has observed its end before, or by an operator, the marks are raised
// above all evidence, a decision is recorded and the fence ends.
// A missing process that may know more is named in Status until it gives evidence, or an
// operator speaks for it: Settle, Adopt.
//
// # Unseen losses
//
// A store that was restored when no process that can know is alive and no witness is
// left; a node that worked while all that found the loss were cut off, and is
// dead; a copy younger than the last beat of a node that is then granted something, under a
// server that did not start anew, also where that beat is long ago and all that are there at
// first were away since; a command that uses a store that was wiped, before a node has met it;
// a request in flight across a restore; a witness older than its node's last grant whose store
// is behind too; two primaries at once.
//
// # Foreign tables
//
// A table of another system has no room for rows and fences. Marks compares the grants of
// such a table with earlier ones, line by line, and refuses a line that went back, until
// Readmit.
//
// # Words
//
// The store acknowledges a write: its answer has come. A process observes the rows of others,
// and its own row reports of itself. Under a fence each process gives its evidence; it attests
// for a row where it knows all grants under it that were used. To operators a floor is
// proposed, and an operator's statement speaks for a missing process.
package witness
