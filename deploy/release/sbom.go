package main

import (
	"debug/buildinfo"
	"encoding/json"
	"io"
	"runtime/debug"
)

// A bom is a bill of materials in the form of CycloneDX 1.6.
type bom struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   bomMetadata `json:"metadata"`
	Components []component `json:"components"`
}

type bomMetadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// bill writes what the binary says that it was built from, which is what "go version
// -m" prints.
func (r *release) bill(p platform, binary string) (string, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "", err
	}
	main := component{Type: "application", Name: info.Main.Path, Version: r.version, PURL: "pkg:golang/" + info.Main.Path + "@" + r.version}
	for _, s := range info.Settings {
		main.Properties = append(main.Properties, property{"build:" + s.Key, s.Value})
	}
	b := bom{
		Format: "CycloneDX", Spec: "1.6", Version: 1,
		Metadata:   bomMetadata{Timestamp: r.at.Format("2006-01-02T15:04:05Z"), Component: main},
		Components: []component{{Type: "library", Name: "std", Version: info.GoVersion, PURL: "pkg:golang/std@" + info.GoVersion}},
	}
	for _, m := range info.Deps {
		b.Components = append(b.Components, part(m))
	}
	name := r.name(p, ".cdx.json")
	return name, r.create(name, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(b)
	})
}

// part describes a module as it went into the binary.
func part(m *debug.Module) component {
	if m.Replace != nil {
		m = m.Replace
	}
	return component{
		Type: "library", Name: m.Path, Version: m.Version, PURL: "pkg:golang/" + m.Path + "@" + m.Version,
		Properties: []property{{"go:sum", m.Sum}},
	}
}
