package strategy

// NewCall returns a call of a line.
func NewCall(strategy, tag string, n int) Call { return Call{&lineName{strategy, tag}, n} }

var NewNumbers = newNumbers
