package redisstore_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/store/redisstore"
)

// TestTwins breaks the scripts in one way at a time, and expects the test of that rule to fail.
func TestTwins(t *testing.T) {
	if os.Getenv(redisstore.TwinVariable) != "" {
		t.Skip("this is a twin")
	}
	for _, twin := range []struct{ name, sound, broken, test string }{
		{"a replica answers", "not string.find(replication, 'role:master', 1, true)", "false", "TestReplica"},
		{"any store will do", "store[1] ~= ARGV[1]", "false", "TestEmptied"},
		{"any format will do", "store[2] ~= ARGV[2]", "false", "TestFormatChanges"},
		{"lost rows are none", "redis.call('HLEN', KEYS[2]) ~= count", "false", "TestLostRows"},
		{"a lost index is none", "not redis.call('ZSCORE', KEYS[4], '')", "false", "TestLostKeys"},
		{"a lost tag is none", "not r.is and ARGV[3] ~= 'mend'", "false", "TestLostLine"},
		{"a lost tag is not healed", "ARGV[3] ~= 'mend'", "true", "TestLostLine"},
		{"a new store beside what is left of one", "redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0", "false", "TestLostKeys"},
		{"an empty row is none", "r.is == (r.old ~= '' and r.old)", "(r.is or '') == r.old", "TestEmptyRows"},
		{"rows as long as they are", "if r.is and #r.is > MAX_VALUE then large", "if false then large", "TestHostileRows"},
		{"tags as long as they are", "if r.is and #r.is > MAX_VALUE then r.is = ''", "if false then r.is = ''", "TestHostileRows"},
		{"half a step before a row that is too long", "half.\nif large then", "half.\nif false then", "TestWholeSteps"},
		{"a ping that writes nothing", "redis.call('HSETNX', KEYS[1], 'id', ARGV[1])", "", "TestWholeSteps"},
		{"a listing that ends early", "#names < n and 'ok' or 'more'", "'ok'", "TestManyRows"},
		{"no history", "(history and ' history ' .. history or '')", "''", "TestReplica"},
		{"conditions that nothing hangs on", "if met and writes[r.what]", "if writes[r.what]", "TestConformance/kv"},
		{"changes of any row", "writes[r.what] and r.same", "writes[r.what]", "TestConformance/kv"},
		{"changes together that do not belong together", "if r.what == 'same' or r.what == 'then'", "if r.what == 'same'", "TestConformance/kv"},
		{"a raise that always writes", "r.is == false or type(r.is) == 'string' and below(r.is, r.to)", "true", "TestConformance/kv"},
		{"at least anything", "and not below(r.is, r.old)", "", "TestConformance/kv"},
		{"a new name that is not listed", "redis.call('ZADD', index, 0, name)", "", "TestConformance/kv"},
		{"what is looked at is as it was", "if r.what == 'look' then read(r) end", "if r.what == 'look' then r.is = false end", "TestEmptyRows"},
	} {
		t.Run(twin.name, func(t *testing.T) {
			name, of, _ := strings.Cut(twin.test, "/")
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+name+"$/"+of)
			cmd.Env = append(os.Environ(), redisstore.TwinVariable+"="+twin.sound+" => "+twin.broken)
			if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "--- FAIL: "+name) {
				t.Errorf("%s does not see it: %v, %s", twin.test, err, out)
			}
		})
	}
}
