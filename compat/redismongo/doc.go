// Package redismongo issues numbers that rise strictly across all processes: Redis
// holds one shared cursor for each business type, inside segments that MongoDB, or
// any other hapax.SegmentStore, has granted.
//
// The cursor is a hash, PREFIX{TAG}:
//
//	cur   the last number that was taken
//	max   the last number of the segment
//	step  how many numbers the segment has
//
// and beside it what keeps numbers apart: srv, the server process and its history
// of replication that the segment was given to; ncur and nmax, the segment that
// comes next; store, whose segments these are; load and until, the server that is fetching a
// segment; at, when the last one was fetched, unless it is the cursor's first. One script takes numbers, the other
// installs a segment; where scripts are not allowed, transactions do the same.
//
// # Why no number appears twice
//
// A store grants each segment once. A process sends a segment to Redis at most
// once, and never issues from it itself; segments that it issues from itself, when
// Redis is away, are others. Of Redis it is assumed only that one server process
// runs scripts and transactions one after the other and does not forget while it runs
// as a master:
//
//   - A segment belongs to the process and the replication history (run_id and
//     master_replid) of the server that it was installed on. After a restart, a
//     failover, a migration of the slot or a time as a replica these differ, the
//     cursor counts as lost with all that it had left, and the next segment comes
//     from the store, above all others. So nothing depends on the data that Redis keeps on
//     disk or on replicas.
//   - A segment is installed only by the holder of a right given by this very
//     server, and the right is used up by it. A request that arrives late or twice
//     does nothing.
//   - The hash names the store that granted its segments. A process with another
//     store is refused (hapax.ErrStoreReplaced).
//   - Every process shows the highest number that it has seen. A cursor that is
//     behind is dropped, for all.
//   - A segment is refused unless it lies above those that the hash knows and
//     above all that the process has seen: then it is the store that went back
//     (hapax.ErrStoreRolledBack).
//
// What remains is a hash that somebody edits, or copies back by hand on the server
// that runs, before a process that knows better has been there.
package redismongo
