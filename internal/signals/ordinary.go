package signals

// passing are troubles that end by themselves, or that the caller has to mend.
var passing = []Trouble{
	{
		ID: "bad-request", Title: "What the caller asked for cannot be",
		Codes: []string{
			"invalid_argument", "invalid_tag", "invalid_layout", "invalid_id", "field_range", "not_supported",
			"route_not_found", "method_not_allowed", "unsupported_media_type", "unknown_command", "protocol_error",
		},
		Means: "The request was refused, and nothing was issued or changed.",
		Cause: "The error names the field, its value and what is allowed.",
		Do:    "Correct the caller.",
		Not:   "Do not repeat the same request.",
	},
	{
		ID: "tags", Title: "The tag or pool is not what the caller thinks",
		Codes:    []string{"tag_not_found", "tag_deleted", "tag_exists", "pool_not_found", "pool_deleted", "kind_mismatch", "layout_mismatch", "unknown_strategy", "plugin_mismatch"},
		Messages: []string{"tag created", "tag deleted"},
		Means:    "A tag or pool is missing, deleted, there already, or frozen as something else.",
		Cause:    "A misspelt name, a deletion at another node, or a configuration that differs from what the store has frozen.",
		Do:       "`hapax tags show NAME` or `hapax pools list` tells what is stored. An explicit create resumes a deleted tag above its mark.",
		Not:      "Do not delete and create a tag to change its kind.",
	},
	{
		ID: "waits", Title: "The wait was too short",
		Codes:    []string{"tick_exhausted", "deadline_exceeded"},
		Messages: []string{"the numbers of this tick are used out; those of the next ones are taken ahead of the clock", "no more numbers may be taken ahead of the clock; callers wait for it", "callers no longer wait for the clock"},
		Means:    "Every number that the clock allows so far is issued, or the caller's own deadline was over.",
		Cause:    "More numbers a second than the layout has, or a deadline of few milliseconds.",
		Do:       "`hapax plan --layout NAME` tells what a layout carries. Spread the load over worker IDs, or choose a layout with more sequence bits.",
		Not:      "Do not set max_ahead to minutes: a crash then costs that much waiting.",
	},
	{
		ID: "leases", Title: "A lease or segment is lost",
		Codes:    []string{"lease_lost", "store_locked"},
		Messages: []string{"worker ID lost", "the machine was asleep; its granted time is not used"},
		Means:    "Somebody else has the worker ID, the numbers or the file now. Nothing is issued from it any more, and the issuer takes another.",
		Cause:    "A pause longer than the lease, a sleeping machine, or another process on the same file.",
		Do:       "Nothing, if it is rare. Look for long pauses, or for a second process with the same data directory.",
		Not:      "Do not lengthen leases to hide pauses.",
	},
	{
		ID: "closing", Title: "The server stops",
		Codes:    []string{"closed"},
		Messages: []string{"about to stop: not ready any more, and serving on", "stopping", "stopped"},
		Means:    "The server was told to stop. It finishes what is in flight and hands back what it holds.",
		Cause:    "SIGTERM, SIGINT, or a listener that failed.",
		Do:       "Send requests to another node.",
		Not:      "Do not kill it before lame_duck, drain and half a minute are over.",
	},
}

// ordinary are messages that need no action.
var ordinary = []Trouble{
	{
		ID: "informs", Title: "What happens in ordinary use",
		Messages: []string{
			"hapax", "serving", "registered", "Vesta's numbers", "number issued",
			"the worker ID of this node in Leaf's tree is granted for a time, within which ZooKeeper is not needed", "grant taken", "issuing moved to another grant", "step changed",
			"worker ID acquired", "worker ID sealed", "issuer event", "redis client", "request",
			"this start has used up a worker ID", "this node has one worker ID in the pool", "a worker ID was retired",
			"the guard tries again", "the interval cannot be told yet", "the survey of the store has failed, and is made again",
			"the look at the rows of others has failed, and is taken again",
			"alarm raised", "alarm cleared", "an alarm could not be delivered",
			"traces or metrics could not be sent",
		},
		Means: "The server tells what it does. Lines about alarms carry the alarm, whose own entry says what to do.",
		Cause: "Ordinary use.",
		Do:    "Nothing. Where an alarm could not be delivered, or telemetry could not be sent, look at the receiver that you configured.",
		Not:   "Do not alert on these lines.",
	},
	{
		ID: "audit", Title: "What administrators did",
		Messages: []string{
			"create tag", "change tag", "delete tag", "create pool", "delete pool", "retire worker", "set plugin",
			"lease worker", "extend lease", "seal lease", "AUTH",
		},
		Means: "The audit log: who did what, from where, and what came of it. `outcome` is done, refused or failed. A request that was refused before it was understood is told by its method or procedure.",
		Cause: "A call of the administrators' API, or one that was refused.",
		Do:    "Nothing. Refused calls in number are somebody who tries.",
		Not:   "Do not filter these lines out: they are the only record.",
	},
}
