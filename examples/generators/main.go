// Command generators makes numbers with generators that are not hapax's, each with the
// worker ID that hapax worker exec gives it. It prints the number and the worker ID in it.
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/bwmarrin/snowflake"
	"github.com/sony/sonyflake/v2"
	"github.com/yitter/idgenerator-go/idgen"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func workerID() (int, error) { return strconv.Atoi(os.Getenv("HAPAX_WORKER_ID")) }

func run(name string) error {
	worker, err := workerID()
	if err != nil {
		return err
	}
	switch name {
	case "bwmarrin":
		node, err := snowflake.NewNode(int64(worker))
		if err != nil {
			return err
		}
		id := node.Generate()
		fmt.Println(id, id.Node())
	case "sonyflake":
		flake, err := sonyflake.New(sonyflake.Settings{MachineID: workerID})
		if err != nil {
			return err
		}
		id, err := flake.NextID()
		if err != nil {
			return err
		}
		fmt.Println(id, flake.Decompose(id)["machine"])
	case "yitter":
		options := idgen.NewIdGeneratorOptions(uint16(worker))
		idgen.SetIdGenerator(options)
		id := idgen.NextId()
		fmt.Println(id, id>>options.SeqBitLength&(1<<options.WorkerIdBitLength-1))
	default:
		return fmt.Errorf("there is no generator %q", name)
	}
	return nil
}
