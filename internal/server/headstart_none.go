//go:build hapaxtest

package server

import (
	"os"
	"time"
)

// headStartEnv makes every store late: a node goes on without it after so short a time.
const headStartEnv = "HAPAX_TEST_HEAD_START"

func init() {
	if text, ok := os.LookupEnv(headStartEnv); ok {
		var err error
		if headStart, err = time.ParseDuration(text); err != nil {
			panic(headStartEnv + ": " + err.Error())
		}
	}
}
