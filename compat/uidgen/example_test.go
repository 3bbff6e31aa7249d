package uidgen_test

import (
	"context"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/uidgen"
	"github.com/hapax-id/hapax/store/memstore"
)

// A cached generator in the process. Over WORKER_NODE, workers is
// uidgen.Table{DB: db}.Workers().
func Example_embedded() {
	ctx := context.Background()
	workers := memstore.New()
	g, err := uidgen.NewCached(ctx, workers, uidgen.CachedOptions{
		Options:    uidgen.Options{Settings: uidgen.Settings{TimeBits: 29, WorkerBits: 21, SeqBits: 13, EpochStr: "2016-09-20"}},
		BoostPower: 3,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close(ctx)
	id, err := g.GetUID(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := g.ParseUID(id)
	fmt.Println(len(text) > 80, err, g.Size())
	// Output: true <nil> 65536
}

// The settings are told once; the zone is the one in which the day of the epoch began.
func ExampleSettings_Layout() {
	old, err := uidgen.Settings{TimeBits: 28, WorkerBits: 22, SeqBits: 13, EpochStr: "2016-05-20"}.Layout()
	fmt.Println(old.Name(), old.Ends().UTC().Format(time.RFC3339), err)
	// Output: uidgenerator-28-22-13 2024-11-20T13:24:16Z <nil>
}

// Numbers that exist are explained in the form that uid-generator gives.
func ExampleParseUID() {
	layout, err := hapax.ParseLayout(hapax.LayoutUIDGenerator29)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(uidgen.ParseUID(layout, uidgen.China, 180363646902239241))
	// Output: {"UID":"180363646902239241","timestamp":"2017-01-19 12:15:46","workerId":"4","sequence":"9"} <nil>
}
