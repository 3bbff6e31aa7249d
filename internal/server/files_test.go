package server

import (
	"testing"

	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/mount/leaf"
	"github.com/hapax-id/hapax/internal/mount/tinyid"
	"github.com/hapax-id/hapax/internal/mount/vesta"
)

func TestConnectionsFitFiles(t *testing.T) {
	for _, tt := range []struct {
		files, listeners, http, resp int
		wantHTTP, wantRESP           int
	}{
		{1 << 20, 2, 20000, 20000, 20000, 20000},
		{1024, 2, 20000, 20000, 384, 384},
		{1024, 3, 20000, 20000, 256, 256},
		{1024, 2, 100, 20000, 100, 384},
		{1024, 2, 100, 100, 100, 100},
		{100, 2, 20000, 20000, 25, 25},
		{1, 2, 20000, 20000, 1, 1},
	} {
		http, resp := tt.http, tt.resp
		fit(tt.files, tt.listeners, &http, &resp)
		if http != tt.wantHTTP || resp != tt.wantRESP {
			t.Errorf("%+v: %d and %d", tt, http, resp)
		}
	}
}

func TestListenersAreCounted(t *testing.T) {
	c := Config{HTTP: "127.0.0.1:8080"}
	for _, tt := range []struct {
		set  func()
		want int
	}{
		{func() {}, 1},
		{func() { c.RESP = "127.0.0.1:6380" }, 2},
		{func() { c.AdminHTTP = "127.0.0.1:8081" }, 3},
		{func() {
			c.Mounts = map[string]mount.Settings{"vesta": &vesta.Settings{HTTP: "127.0.0.1:8099", Dubbo: "127.0.0.1:20880"}}
		}, 5},
		{func() { c.Mounts["leaf"] = &leaf.Settings{HTTP: "127.0.0.1:8088"} }, 6},
		{func() { c.Mounts["tinyid"] = &tinyid.Settings{} }, 6},
	} {
		if tt.set(); c.listeners() != tt.want {
			t.Errorf("%+v: %d listeners, want %d", c, c.listeners(), tt.want)
		}
	}
}

func TestOwnHosts(t *testing.T) {
	s := &server{config: Config{Hosts: "ids.internal, other"}}
	for host, own := range map[string]bool{
		"": true, "localhost:8080": true, "10.1.2.3:8080": true, "[::1]": true, "[2001:db8::1]:8080": true, "IDS.internal:8080": true, "other": true,
		"evil.example": false, "ids.internal.evil.example": false, "10.1.2.3.evil.example:8080": false, ", ": false,
	} {
		if s.isOwnHost(host) != own {
			t.Errorf("%q: %t", host, !own)
		}
	}
	s.config.Hosts = "*"
	if !s.isOwnHost("whatever") {
		t.Error("* is not any")
	}
}
