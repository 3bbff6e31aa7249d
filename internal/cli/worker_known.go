package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
)

// A generator is one of others whose knobs are known.
type generator struct {
	name        string
	least, most int64         // the worker IDs that it can have
	ahead       time.Duration // how far its numbers may be ahead of the clock, with its unit
	env         []string      // templates; empty where the program has to pass the worker ID
	knob        string        // what takes the worker ID

	text      func(id int64) string // what hold --http answers, where that is not JSON
	isClaimed bool                  // hold --http answers only programs that give a name
}

// generators are those that --for knows.
var generators = []generator{
	{"bwmarrin", 0, 1023, time.Second, nil, "snowflake.NewNode(id)", nil, false},
	{"cap", 0, 1023, time.Second, []string{"CAP_WORKERID={worker}"}, "$CAP_WORKERID", nil, false},
	{"cosid", 0, 1023, time.Second, nil, "new HapaxMachineIds(URI.create(\"http://127.0.0.1:8090/\")), at worker hold --http", nil, true},
	{"hutool", 0, 1023, time.Second, nil, "IdUtil.getSnowflake(id % 32, id / 32)", nil, false},
	{"hypersistence-tsid", 0, 1023, 11 * time.Second, []string{"TSID_NODE={worker}"}, "$TSID_NODE", nil, false},
	{"idgen", 0, 1023, time.Second, nil, "new IdGenerator(id)", nil, false},
	{"mybatis-plus", 0, 1023, time.Second, []string{"MYBATISPLUS_GLOBALCONFIG_WORKERID={worker%32}", "MYBATISPLUS_GLOBALCONFIG_DATACENTERID={worker/32}"}, "mybatis-plus.global-config.worker-id and .datacenter-id", nil, false},
	{"nacos", 0, 1023, time.Second, []string{"NACOS_CORE_SNOWFLAKE_WORKER_ID={worker}"}, "nacos.core.snowflake.worker-id", nil, false},
	{"nodejs-snowflake", 0, 4095, time.Second, nil, "new Snowflake({custom_epoch, instance_id: id})", nil, false},
	{"pgedge", 1, 1023, time.Second, nil, "postgres -c snowflake.node=ID", nil, false},
	{"seata", 0, 1023, time.Second, []string{"SERVER_NODE={worker}"}, "$SERVER_NODE, which it reads in a container; elsewhere -n ID", nil, false},
	{"shardingsphere", 0, 1023, time.Second, nil, "the property worker-id of a key generator of type SNOWFLAKE", nil, false},
	{"sonyflake", 0, 65535, time.Second, nil, "Settings.MachineID", nil, false},
	{"tsid-creator", 0, 1023, 11 * time.Second, []string{"TSIDCREATOR_NODE={worker}"}, "$TSIDCREATOR_NODE", nil, false},
	{"yitter", 0, 63, 3 * time.Second, nil, "idgen.NewIdGeneratorOptions(id)", nil, false},
	{"zitadel", 0, 65535, time.Second, nil, "ZITADEL_MACHINE_IDENTIFICATION_WEBHOOK_URL, at worker hold --http", zitadelText, false},
}

func knownGenerator(name string) (generator, error) {
	i := slices.IndexFunc(generators, func(g generator) bool { return g.name == name })
	if i < 0 {
		names := make([]string, len(generators))
		for i, g := range generators {
			names[i] = g.name
		}
		return generator{}, &hapax.ValueError{Field: "--for", Value: name, Allowed: "one of " + strings.Join(names, ", "), Err: hapax.ErrInvalidArgument}
	}
	return generators[i], nil
}

func (g generator) variables() []variable {
	var vars []variable
	for _, text := range g.env {
		v, err := parseVariable(text)
		if err != nil {
			panic(err) // a test reads all of them
		}
		vars = append(vars, v)
	}
	return vars
}

func printKnown(cmd *cobra.Command) error {
	out := newOutput(cmd, false, "GENERATOR", "WORKER IDS", "AHEAD", "VARIABLES", "KNOB")
	for _, g := range generators {
		vars := strings.Join(g.env, " ")
		if vars == "" {
			vars = "(" + workerVariable + ")"
		}
		if err := out.add(nil, g.name, fmt.Sprintf("%d-%d", g.least, g.most), g.ahead.String(), vars, g.knob); err != nil {
			return err
		}
	}
	return out.flush()
}

// generator returns the known one that is meant, or none.
func (f *workerFlags) generator() generator {
	g, _ := knownGenerator(f.known) // prepare said what is wrong
	return g
}
