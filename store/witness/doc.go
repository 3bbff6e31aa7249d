// Package witness guards a store against its own past: it notices a store that
// was restored from a backup, replaced, edited or copied, and then sees to it
// that nobody is granted anything until an operator has decided.
//
// Guard wraps a store, for servers and for programs that embed the library. A
// grant passes in this order, in the methods Allocate, AcquireWorker and
// ExtendWorker of Guarded:
//
//  1. the store grants it;
//  2. the witness, a file outside the store, accepts and records it, durably;
//  3. the node's heartbeat in the store goes on by one, and there is no fence;
//  4. the grant is used.
//
// A store that went back lacks something that was acknowledged: a mark that the
// witness has recorded, the store's own identity, or a heartbeat. Each of the
// three makes the node refuse. The refusal is recorded in the witness, so that it
// outlives the process, and raised in the store as a fence, so that it holds for
// every node, also for those that know of nothing:
//
//	               lacks a mark, a heartbeat, its identity
//	     serving ------------------------------------------> refusing
//	      |  ^                                                |
//	fence |  | fence lifted, all marks at or above            | raises the fence,
//	found |  | the witness's                                  | publishes evidence
//	      v  |                                                v
//	     fenced <---------------------------------------------+
//
// While the fence stands every living node publishes what its witness knows as
// evidence. Adopt, run once by an operator, waits for that evidence, raises every
// mark above it and lifts the fence.
//
// On a shared store a node that joins registers, and waits for one heartbeat
// before its first grant if other nodes are there, so that one that knows better
// can raise the fence first.
//
// What stays unseen: a store that went back while no node that wrote to it since
// is alive and in reach of it, and no witness of such a node is left.
package witness
