package api

// A PoolStatus is a worker pool as an operator sees it.
type PoolStatus struct {
	Name       string      `json:"name"`
	Layout     string      `json:"layout"`            // the name, or else the spec, which it is or will be frozen with
	Workers    int64       `json:"workers,omitempty"` // how many worker IDs the layout has
	Configured bool        `json:"configured"`        // named in the server's configuration
	Frozen     bool        `json:"frozen"`            // in the store, which never changes its layout
	Deleted    bool        `json:"deleted,omitempty"` // issues nothing until it is created anew
	Issuer     *PoolIssuer `json:"issuer,omitempty"`  // if the pool is in use on this node
	StartsLeft *int64      `json:"starts_left,omitempty"`
}

// A PoolIssuer is the issuer of a pool's tags on one node.
type PoolIssuer struct {
	Worker    int64   `json:"worker"`
	Issued    int64   `json:"issued"`
	Remaining float64 `json:"grant_remaining_seconds"` // of the granted time
}
