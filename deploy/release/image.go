package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageUser is the user in a container: the number that images without accounts use
// for nobody.
const imageUser = 65532

// image writes one image for all processors, from scratch and without a daemon, as an
// archive of the OCI layout.
func (r *release) image(binaries map[platform]string) (string, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		binary, ok := binaries[p]
		if !ok || p.os != "linux" {
			continue
		}
		img, err := r.imageOf(p, binary)
		if err != nil {
			return "", fmt.Errorf("image for %s: %w", p, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform:    &v1.Platform{OS: p.os, Architecture: p.arch},
			Annotations: map[string]string{"org.opencontainers.image.ref.name": r.version},
		}})
	}
	dir, err := os.MkdirTemp("", "hapax-image-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }() // it is a temporary one
	if _, err := layout.Write(dir, index); err != nil {
		return "", err
	}
	name := "hapax-" + r.version + "-oci.tar"
	return name, r.create(name, func(w io.Writer) error { return r.tarDir(w, dir) })
}

// imageOf makes the image for one processor: the binary, an account and a directory for
// the data.
func (r *release) imageOf(p platform, binary string) (v1.Image, error) {
	root, err := r.root(binary)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(root)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.at}, CreatedBy: "make release"}})
	if err != nil {
		return nil, err
	}
	config, err := partial.ConfigFile(img)
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, v1.Time{Time: r.at}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%[1]d", imageUser),
		Entrypoint: []string{"/hapax"},
		Cmd:        []string{"serve"},
		WorkingDir: "/",
		Env: []string{
			"PATH=/", "HAPAX_DATA=/var/lib/hapax", "HAPAX_HTTP=0.0.0.0:8080", "HAPAX_RESP=0.0.0.0:6380",
		},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "6380/tcp": {}},
		Volumes:      map[string]struct{}{"/var/lib/hapax": {}},
		StopSignal:   "SIGTERM",
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/hapax", "health"}, Interval: 10 * time.Second, Timeout: 6 * time.Second, StartPeriod: 10 * time.Second, Retries: 3,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title": "hapax", "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.revision": r.revision, "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source": "https://github.com/hapax-id/hapax",
		},
	}
	return mutate.ConfigFile(img, config)
}

// root returns the file system of the image as an archive.
func (r *release) root(binary string) ([]byte, error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	account := fmt.Sprintf("hapax:x:%d:%[1]d:hapax:/var/lib/hapax:/\n", imageUser)
	group := fmt.Sprintf("hapax:x:%d:\n", imageUser)
	var out bytes.Buffer
	t := tar.NewWriter(&out)
	for _, e := range []struct {
		name  string
		mode  int64
		owner int
		data  []byte
	}{
		{"etc/", 0o755, 0, nil},
		{"etc/group", 0o644, 0, []byte(group)},
		{"etc/passwd", 0o644, 0, []byte(account)},
		{"hapax", 0o755, 0, program},
		{"tmp/", 0o1777, 0, nil},
		{"var/", 0o755, 0, nil},
		{"var/lib/", 0o755, 0, nil},
		{"var/lib/hapax/", 0o700, imageUser, nil},
	} {
		h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.data)), ModTime: r.at, Format: tar.FormatPAX, Typeflag: tar.TypeReg}
		if e.data == nil {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := t.Write(e.data); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), t.Close()
}

// tarDir packs a directory, in the order of its names.
func (r *release) tarDir(w io.Writer, dir string) error {
	t := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path) //nolint:gosec // nobody else writes there
		if err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: r.at, Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err = t.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	return t.Close()
}
