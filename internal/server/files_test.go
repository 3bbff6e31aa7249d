package server

import "testing"

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
