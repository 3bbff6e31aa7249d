// Command chart writes the plain manifests for Kubernetes, which are the chart rendered
// for a shared store and for the embedded one.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

func main() {
	top := flag.String("top", ".", "directory with the chart's directory helm and the manifests' kubernetes")
	flag.Parse()
	if err := run(*top); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// A variant is one of the ways in which the chart is rendered to plain manifests.
type variant struct {
	file   string
	values map[string]any
}

var variants = []variant{
	{"embedded.yaml", map[string]any{}},
	{"shared.yaml", map[string]any{"store": map[string]any{
		"url": "postgres://hapax@postgres/hapax", "passwordSecret": map[string]any{"name": "hapax-store"},
	}}},
}

func run(top string) error {
	for _, v := range variants {
		text, err := manifests(top, v.values)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(top, "kubernetes", v.file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// manifests renders the chart, as helm template does, into one text.
func manifests(top string, values map[string]any) (string, error) {
	files, err := render(top, values)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	text.WriteString("# Rendered from the chart by \"make manifests\".\n")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text.WriteString("---\n" + files[name] + "\n")
	}
	return text.String(), nil
}

// render returns the objects of the chart by the file of their template.
func render(top string, values map[string]any) (map[string]string, error) {
	c, err := loader.Load(filepath.Join(top, "helm", "hapax"))
	if err != nil {
		return nil, err
	}
	full, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "hapax", Namespace: "default", IsInstall: true, Revision: 1}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Render(c, full)
	if err != nil {
		return nil, err
	}
	objects := map[string]string{}
	for path, text := range rendered {
		name := filepath.Base(path)
		if text = strings.TrimSpace(text); strings.HasSuffix(name, ".yaml") && text != "" {
			objects[name] = text
		}
	}
	return objects, nil
}
