package imports

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/uidgen"
	"github.com/hapax-id/hapax/internal/compat/accounting"
	"github.com/hapax-id/hapax/plan"
)

var now = time.Date(2026, 11, 1, 0, 0, 0, 823_900_000, time.UTC) // within a tick

func readText(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(accounting.Case{"file": text}.Write(t), "file")
	return Read(Source{Open: openFile, Path: path})
}

// A properties file, and XML in other words.
func TestRead(t *testing.T) {
	for name, text := range map[string]string{
		"properties":          "uid.timeBits=29\nuid.workerBits=21\nuid.epochStr=2016-09-20\nspring.datasource.url=jdbc:mysql://h/d\nspring.datasource.username=u\n",
		"kebab-case":          "uid.time-bits=29\nuid.worker-bits=21\nuid.epoch-str=2016-09-20\nspring.datasource.url=jdbc:mysql://h/d\nspring.datasource.username=u\n",
		"plain generator":     `<beans><bean class="com.baidu.fsg.uid.impl.DefaultUidGenerator"><property name="timeBits" value="29"/><property name="workerBits" value="21"/><property name="epochStr" value="2016-09-20"/></bean><bean class="ds"><property name="jdbcUrl" value="jdbc:mysql://h/d"/><property name="user" value="u"/></bean></beans>`,
		"plain, p namespaces": `<beans><bean class="com.baidu.fsg.uid.impl.DefaultUidGenerator" p:timeBits="29" p:workerBits="21" p:epochStr="2016-09-20"/><bean class="ds" p:url="jdbc:mysql://h/d" p:username="u"/></beans>`,
	} {
		c, err := readText(t, text)
		c.account = nil
		want := Config{Settings: uidgen.Settings{TimeBits: 29, WorkerBits: 21, EpochStr: "2016-09-20"}, Table: "mysql://u@h:3306/d"}
		if c != want || err != nil {
			t.Errorf("%s: got %+v, %v", name, c, err)
		}
	}
	if text := (accounting.Case{"file": "uid.timeBits=29\nuid.workerBits=21\nuid.epochStr=2016-09-20\nuid.paddingFactor=50\nspring.datasource.url=jdbc:mysql://h/d\nspring.datasource.username=u\nspring.datasource.password=p\n"}).Check(t, func(dir string) (string, error) {
		c, err := Read(Source{Open: openFile, Path: filepath.Join(dir, "file")})
		if err != nil {
			return "", err
		}
		p, err := NewPlan(c, nil, plan.Wishes{Now: now})
		return string(p.AppendYAML(nil, c)), err
	}, "uid."); !strings.Contains(text, "boost_power: 3") {
		t.Errorf("printed is %s", text)
	}
}

func TestRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no generator": "<beans/>", "two": `<beans><bean class="com.baidu.fsg.uid.impl.DefaultUidGenerator"/><bean class="com.baidu.fsg.uid.impl.CachedUidGenerator"/></beans>`,
		"no setting": "a=b", "bits": "timeBits=many",
		"two databases": "uid.timeBits=29\na.url=jdbc:mysql://h/d\nb.url=jdbc:mysql://h/e\n",
		"two values":    "uid.timeBits=29\nuid.time-bits=28\n",
		"no value":      `<beans><bean class="com.baidu.fsg.uid.impl.DefaultUidGenerator" p:timeBits="${bits}"/></beans>`,
		"expression":    `<beans><bean class="com.baidu.fsg.uid.impl.DefaultUidGenerator" p:timeBits="#{29}"/></beans>`,
		"profile":       `<beans profile="dev"><bean class="com.baidu.fsg.uid.impl.DefaultUidGenerator"/></beans>`,
		"several hosts": "uid.timeBits=29\na.url=jdbc:mysql://h1,h2/d\n",
	} {
		if c, err := readText(t, text); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// The default layout's time is over, and 30, 22 and 11 bits go through its numbers again.
func TestPlan(t *testing.T) {
	over := Config{}
	copied := Config{Settings: uidgen.Settings{TimeBits: 30, WorkerBits: 22, SeqBits: 11, EpochStr: "2021-01-20"}}
	if _, err := NewPlan(over, nil, plan.Wishes{Now: now}); !errors.Is(err, hapax.ErrTimeExhausted) || !strings.Contains(err.Error(), "2024-11-20T13:24:16Z") {
		t.Errorf("the default layout: %v", err)
	}
	_, err := NewPlan(copied, nil, plan.Wishes{Now: now})
	if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "issues numbers that the default one of 28, 22 and 13 bits may have issued") {
		t.Errorf("30, 22 and 11: %v", err)
	}
	for _, used := range []plan.Span{{Min: 6755399441055744, Max: 9223372036854775807}, {Min: 1, Max: 1 << 52}} {
		p, err := NewPlan(over, &used, plan.Wishes{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		if p.Values.Overlaps(used) || p.Values.Min > p.Values.Max {
			t.Errorf("%+v overlaps %+v", p.Values, used)
		}
		if _, _, ok := plan.Collisions(p.Layout, p.From, used); ok {
			t.Errorf("%s collides with %+v", p.Layout, used)
		}
		text := string(p.AppendYAML(nil, over))
		_, proof, _ := strings.Cut(text, "# Disjoint for ever: ")
		var a, b int64
		var relation string
		if _, err := fmt.Sscan(strings.ReplaceAll(proof, ",", " "), &a, &relation, &b); err != nil || (a > b) != (relation == ">") || a == b || !strings.Contains(text, p.Layout.String()) {
			t.Errorf("the proof is wrong, %v:\n%s", err, text)
		}
		if !strings.Contains(text, "\nstore: \"the URL of the store") { // with one each, all servers would be worker 0
			t.Errorf("it does not ask for a store that all servers share:\n%s", text)
		}
	}
	if p, err := NewPlan(over, &plan.Span{Min: 1, Max: 9223372036854775807}, plan.Wishes{Now: now}); err == nil {
		t.Errorf("there is no room, and still a plan: %+v", p)
	}
}
