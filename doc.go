// Package hapax issues unique 64-bit numbers: order numbers, user IDs, event IDs.
//
//	store, err := witness.Open(ctx, open, "/var/lib/shop", witness.Options{})
//	orders, err := hapax.NewSegment(ctx, store, "orders", hapax.SegmentOptions{})
//	id, err := orders.Next(ctx) // 1, 2, 3, …
//	err = orders.Close(ctx)     // hands back what was not issued
//
// To issue, stay here: a [Segment] counts a tag's numbers up, a [Snowflake] puts
// time and worker ID into the bits of a [Layout]. Each is an [Issuer]; the example
// of that runs as above. [Grant] tells what they issue from, and under which
// conditions no number is issued twice. Errors match an [Error], such as
// [ErrClosed]. Stores are below store: memstore, boltstore, sqlstore, redisstore and
// others. Where processes share one, [github.com/hapax-id/hapax/store/witness.Open]
// opens it with a guard against a store that goes back, as with a restored backup.
//
// To write a store, read [github.com/hapax-id/hapax/store/driver].
//
// To make numbers your own way, or to stand around each call that issues, read
// [github.com/hapax-id/hapax/strategy].
package hapax
