package witness

import "testing"

// SetUptime replaces the machine's clock for a test.
func SetUptime(t *testing.T, f func() (boot string, ms int64)) {
	old := uptime
	uptime = f
	t.Cleanup(func() { uptime = old })
}
