package witness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

// BenchmarkSurvey reads 100,000 tags into a witness that knows none of them.
func BenchmarkSurvey(b *testing.B) {
	ctx := context.Background()
	store := memstore.New()
	for i := range 100_000 {
		def, err := hapax.Tag{Name: fmt.Sprintf("tag-%06d", i)}.WithDefaults()
		if err == nil {
			_, err = store.CreateTag(ctx, def, hapax.CreateExplicit)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	all, err := readLines(ctx, onePage{store, all(b, store)}, newLines())
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "witness")
	for b.Loop() {
		_ = os.Remove(path)
		w, err := OpenFile(path)
		if err != nil {
			b.Fatal(err)
		}
		g := &Guarded{witness: w}
		if err := g.learn(newRecord(), all.lines, nil, nil, 1, 0, ""); err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(info.Size()), "bytes")
}

// onePage has its tags at hand: a store in memory sorts them anew for each page.
type onePage struct {
	*memstore.Store
	tags []hapax.Tag
}

func all(b *testing.B, s *memstore.Store) []hapax.Tag {
	tags, err := s.Tags(context.Background(), "", 1<<30)
	if err != nil {
		b.Fatal(err)
	}
	return tags
}

func (s onePage) Tags(_ context.Context, after string, limit int) ([]hapax.Tag, error) {
	for i := range s.tags {
		if s.tags[i].Name > after {
			return s.tags[i:min(len(s.tags), i+limit)], nil
		}
	}
	return nil, nil
}
