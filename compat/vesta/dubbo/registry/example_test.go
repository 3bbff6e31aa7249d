package registry_test

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax/compat/vesta/dubbo"
	"github.com/hapax-id/hapax/compat/vesta/dubbo/registry"
)

// A central server that consumers find in ZooKeeper. It leaves the registry before it stops,
// so that they go elsewhere, and then answers what was asked.
func ExampleRegister() {
	ctx := context.Background()
	var server *dubbo.Server // which serves at 10.0.0.5:20880
	reg, err := registry.Register(ctx, "zk://10.0.0.8:2181,10.0.0.9:2181", []string{dubbo.DefaultInterface}, "10.0.0.5:20880", registry.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	reg.Close()
	fmt.Println(server.Close(ctx))
}
