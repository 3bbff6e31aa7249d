// Package strategy lets a program choose by name how numbers are made: a [Strategy]
// makes the issuer of a tag, and a [Plugin] wraps what issuers do.
//
//	strategies := strategy.NewRegistry(strategy.Options{})
//	strategies.Register("segment", strategy.Segment(store, hapax.SegmentOptions{}))
//	strategies.Use(strategy.Plugin{Name: "closed", Before: func(context.Context, strategy.Call) error {
//		return errors.New("we are closed")
//	}})
//	line, err := strategies.Open(ctx, "segment", hapax.Tag{Name: "orders"})
//
// A [Line] is the issuer of one tag with the plugins that serve it at the moment.
// A call goes through them in their order, smaller first:
//
//	Before of each plugin   an error is a veto: nothing is issued
//	the strategy's issuer
//	Replace or After of each plugin
//
// Where a call fails, OnError of each plugin is told, and then the rejection
// handler of the strategy. A batch is one call of each hook.
//
// # Uniqueness
//
// No plugin can make a number appear twice by failing: a veto issues nothing, an
// After hook cannot change numbers, and what a Replace hook failed on is burnt.
// A Replace hook has to be injective over all numbers that the line ever issues,
// before and after a restart. So a plugin with that hook can be neither added nor
// removed, ordered nor switched while a line that it serves is open. A change of
// it between two runs is safe only if old and new numbers cannot meet.
package strategy
