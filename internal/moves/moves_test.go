package moves

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/memstore"
)

// What cannot be made natively is known from the plan on, since a row is closed before its tag is made.
func TestPlanJudgesNames(t *testing.T) {
	store := memstore.New()
	const there, decomposed = "nai\u0308ve", "cafe\u0301"
	def, err := hapax.Tag{Name: there}.WithDefaults()
	if err == nil {
		_, err = store.CreateTag(t.Context(), def, hapax.CreateExplicit)
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := Plan(t.Context(), store, []hapax.Tag{{Name: "café"}, {Name: decomposed}, {Name: there}}, nil)
	if err != nil || len(all) != 3 || all[0].Reason != nil || !errors.Is(all[1].Reason, hapax.ErrInvalidTag) || all[2].Reason != nil {
		t.Fatalf("planned %+v, %v; want a reason for the name in pieces that is new", all, err)
	}
	var closed []string
	err = Apply(t.Context(), all, func(_ context.Context, m *Move) error { closed = append(closed, m.Tag.Name); return nil }, nil)
	if err != nil || len(closed) != 2 || closed[0] != "café" || closed[1] != there {
		t.Errorf("closed %q, %v", closed, err)
	}
}

// A move to a tag that is there, as one made before tags said that they take over from a source, keeps all that
// the tag says: also a code that this process, a command, has no key for.
func TestCreateKeepsWhatTheTagSays(t *testing.T) {
	store := memstore.New()
	with := func(keys define.Keys) *service.Service {
		s, err := service.New(t.Context(), store, service.Options{OneShot: true, CodeKeys: keys, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		return s
	}
	servers := with(define.Keys{"k1": []byte("0123456789abcdef")})
	for name, extra := range map[string]string{
		"plain": "", "another program's": "note", "coded": define.CodeExtra("A{id:9}", ""), "scrambled": define.CodeExtra("B{key}{id:9:58:feistel=k1}", ""),
	} {
		t.Run(name, func(t *testing.T) {
			was, err := servers.CreateTag(t.Context(), hapax.Tag{Name: name, Extra: extra}, hapax.CreateExplicit)
			if err != nil {
				t.Fatal(err)
			}
			def, err := hapax.Tag{Name: name, Mark: 1000}.WithDefaults()
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := Create(t.Context(), with(nil), &Move{Tag: def}); err != nil {
					t.Fatal(err)
				}
			}
			now, err := store.Tag(t.Context(), name)
			says, before := define.Read(now), define.Read(was)
			if err != nil || now.Mark != 1000 || says.IsOur != says.Says.Source || says.Says.Spec != before.Says.Spec || !says.IsOur && now.Extra != extra {
				t.Errorf("the tag is %+v, %v, and was %+v", now, err, was)
			}
		})
	}
}
