// Package server runs hapax as a server: it reads the configuration, opens the
// data directory and the store that a URL names, listens, and stops in order.
//
// Settings is the one description of every setting. The flags of the command,
// the environment variables, the YAML keys and docs/configuration.md come from
// it.
//
//	starting --(listening, node open)--> serving --(context ends)--> draining
//	    |                                                               |
//	    +--(error)--> stopped <--(sealed, closed)-- sealing <-----------+
package server
