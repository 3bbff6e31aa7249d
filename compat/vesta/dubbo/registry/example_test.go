package registry_test

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax/compat/vesta/dubbo"
	"github.com/hapax-id/hapax/compat/vesta/dubbo/registry"
)

// Consumers find a central server at 10.0.0.5:20880 in ZooKeeper.
func ExampleRegister() {
	reg, err := registry.Register(context.Background(), "zk://10.0.0.8:2181,10.0.0.9:2181", []string{dubbo.DefaultInterface}, "10.0.0.5:20880", registry.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	reg.Close() // before the server, so that consumers go elsewhere first
}
