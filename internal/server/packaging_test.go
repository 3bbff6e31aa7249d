package server

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hapax-id/hapax"
)

// handBack is how long a stop may take after lame_duck and drain, as docs/operating.md
// has it.
const handBack = 30 * time.Second

func deployed(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// settingsOf reads settings as a server does that has nothing else.
func settingsOf(t *testing.T, text string) Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hapax.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(Sources{File: file, Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return c
}

// seconds returns the number that follows a key.
func seconds(t *testing.T, text, key string) time.Duration {
	t.Helper()
	m := regexp.MustCompile(regexp.QuoteMeta(key) + ` ?([0-9]+)\n`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("there is no %s in %s", key, text)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n) * time.Second
}

// What packages install is settings that a server starts with, and a unit that gives
// it the time to stop.
func TestPackaging(t *testing.T) {
	c := settingsOf(t, deployed(t, "package/hapax.yaml"))
	if c.Data != "/var/lib/hapax" {
		t.Errorf("the data directory is %s, and the package makes /var/lib/hapax", c.Data)
	}
	unit := deployed(t, "package/hapax.service")
	if got, want := seconds(t, unit, "TimeoutStopSec="), c.LameDuck+c.Drain+handBack; got < want {
		t.Errorf("the unit kills after %v, and a stop may take %v", got, want)
	}
	chart := deployed(t, "helm/hapax/Chart.yaml")
	if v := hapax.Version(); !strings.Contains(chart, "\nversion: "+v+"\n") || !strings.Contains(chart, "\nappVersion: \""+v+"\"\n") {
		t.Errorf("the chart is not of version %s: %s", v, chart)
	}
}

// The rendered manifests hold settings that a server starts with, and pods have the
// time to stop. What else they hold is decoded by make release-test.
func TestManifests(t *testing.T) {
	for _, file := range []string{"kubernetes/embedded.yaml", "kubernetes/shared.yaml"} {
		t.Run(file, func(t *testing.T) {
			text := deployed(t, file)
			found := false
			for d := yaml.NewDecoder(strings.NewReader(text)); ; {
				var object struct {
					Kind string
					Data map[string]string
				}
				if err := d.Decode(&object); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				if object.Kind != "ConfigMap" {
					continue
				}
				found = true
				c := settingsOf(t, object.Data["hapax.yaml"])
				if got, want := seconds(t, text, "terminationGracePeriodSeconds:"), c.LameDuck+c.Drain+handBack; got < want {
					t.Errorf("a pod is killed after %v, and a stop may take %v", got, want)
				}
				if c.HTTP != "0.0.0.0:8080" || c.RESP != "0.0.0.0:6380" {
					t.Errorf("it listens on %s and %s, and the pod's ports are 8080 and 6380", c.HTTP, c.RESP)
				}
			}
			if !found {
				t.Error("there are no settings")
			}
		})
	}
}
