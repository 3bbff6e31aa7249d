package redisstore

import (
	"os"
	"strings"
)

// TwinVariable has the tests run with scripts in which one text is replaced by another, which
// follows " => ".
const TwinVariable = "HAPAX_TEST_REDIS_TWIN"

func init() {
	sound, broken, ok := strings.Cut(os.Getenv(TwinVariable), " => ")
	found := false
	for _, sc := range []*script{&openScript, &openedScript, &pingScript, &listScript, &stepScript} {
		if ok && strings.Contains(sc.source, sound) {
			*sc, found = scriptOf(strings.ReplaceAll(sc.source, sound, broken), sc.writes), true
		}
	}
	if ok && !found {
		panic("no script has the text " + sound)
	}
}
