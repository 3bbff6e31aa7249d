package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/internal/service/health"
)

// Where a package runs the service, its settings are looked at, unless others are named.
func TestDoctorTakesTheServicesSettings(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	defer func(old string) { serviceConfig = old }(serviceConfig)
	serviceConfig = filepath.Join(dir, "hapax.yaml")
	take := func(s *settingFlags) (string, int) {
		return s.file, len(s.ofTheService())
	}
	of := func(given map[string]string) *settingFlags { return &settingFlags{given: given} }
	none := map[string]string{}
	if file, told := take(of(none)); file != "" || told != 0 {
		t.Errorf("without a package: %q, %d", file, told)
	}
	if err := os.WriteFile(serviceConfig, []byte("heal: manual\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := of(none)
	if told := s.ofTheService(); s.file != serviceConfig || len(told) != 1 || !strings.Contains(told[0].Detail, serviceConfig) {
		t.Errorf("with a package: %q, %+v", s.file, told)
	}
	if s := (&settingFlags{given: none, file: "mine.yaml"}); len(s.ofTheService()) > 0 || s.file != "mine.yaml" {
		t.Errorf("with --config: %q", s.file)
	}
	if s := of(map[string]string{"data": "d"}); len(s.ofTheService()) > 0 || s.file != "" {
		t.Errorf("with --data: %q", s.file)
	}
	t.Run("variables", func(t *testing.T) {
		t.Setenv(configEnv, "mine.yaml")
		if s := of(none); len(s.ofTheService()) > 0 || s.file != "" {
			t.Errorf("%q", s.file)
		}
	})
	if err := os.Mkdir("hapax-data", 0o700); err != nil {
		t.Fatal(err)
	}
	if s := of(none); len(s.ofTheService()) > 0 || s.file != "" {
		t.Errorf("with a data directory here: %q", s.file)
	}
}

// A node that fell silent is told of until it comes back, for a day.
func TestLostNodes(t *testing.T) {
	rows := []client.Node{
		{Row: "0001-A", Name: "a", State: "silent", Seen: time.Minute},
		{Row: "0002-B", Name: "b", State: "silent", Seen: time.Minute},
		{Row: "0003-A", Name: "a", State: "serving", Seen: time.Second},
		{Row: "0004-C", Name: "c", State: "left", Seen: time.Minute},
		{Row: "0005-D", Name: "d", State: "silent", Seen: 25 * time.Hour},
		{Row: "0006-E", Name: "e", State: "silent"},
		{Row: "0007-F", Name: "f", State: "silent", Seen: time.Hour},
		{Row: "0008-F", Name: "f", State: "left", Seen: time.Minute},
		{Row: "0009-B", Name: "b", State: "silent", Seen: time.Second},
	}
	var names []string
	for _, n := range lost(rows) {
		names = append(names, n.Row)
	}
	if !slices.Equal(names, []string{"0009-B"}) {
		t.Errorf("lost are %v", names)
	}
}

// What a server says of itself is weighed: without the store its budget is what is left.
func TestDiagnoses(t *testing.T) {
	ends := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	st := client.Status{
		State: "serving", Budget: &client.Budget{Kind: "tag", Name: "orders", Seconds: 8},
		Forecasts: []client.Forecast{{What: "reader", Kind: "tag", Name: "cust", Ends: ends}, {What: "workers", Kind: "pool", Name: "p", Ends: ends}},
		Alarms:    []client.Alarm{{Name: health.AlarmForecast, About: "cust", Detail: "soon", See: "x"}},
	}
	find := func(part string) (all []server.Diagnosis) {
		for _, d := range diagnoses(st) {
			if d.Part == part {
				all = append(all, d)
			}
		}
		return all
	}
	if all := find("outage budget"); len(all) != 1 || all[0].Harm != server.HarmNone {
		t.Errorf("with the store: %+v", all)
	}
	if all := find("forecast"); len(all) != 1 || all[0].Detail != "the free worker IDs of the pool p will be used up at 2030-01-02T03:04:05Z" || !strings.HasSuffix(all[0].See, "#line-ends") {
		t.Errorf("the forecasts: %+v", all)
	}
	st.Code = "store_unavailable"
	if all := find("outage budget"); len(all) != 1 || all[0].Harm != server.HarmSoon || !strings.HasSuffix(all[0].See, "#budget-low") {
		t.Errorf("without the store: %+v", all)
	}
	st.Nodes = []client.Node{{Row: "1", Name: "b", Address: "10.0.0.2:8080", State: "silent", Seen: time.Minute}}
	if all := find("nodes"); len(all) != 1 || all[0].Harm != server.HarmWeak || !strings.Contains(all[0].Detail, "10.0.0.2:8080") {
		t.Errorf("a node that is lost: %+v", all)
	}
}
