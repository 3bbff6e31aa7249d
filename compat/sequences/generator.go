package sequences

import "context"

const generatorKind = "generator table"

func generatorsOf(context.Context, any, Options, string) ([]*Source, []string, error) {
	return nil, nil, nil
}
func (p *postgres) generators(context.Context, string) ([]*Source, []string, error) {
	return nil, nil, nil
}
func (p *postgres) generatorAt(context.Context, part) (int64, error)        { return 0, nil }
func (p *postgres) generatorSteps(*Source, Switch, int64) ([]string, error) { return nil, nil }
func (p *postgres) generatorBackSteps(*Source, int64) ([]string, error)     { return nil, nil }
func (p *mySQL) generatorAt(context.Context, part) (int64, error)           { return 0, nil }
func (p *mySQL) generatorSteps(*Source, Switch, int64) ([]string, error)    { return nil, nil }
func (p *mySQL) generatorBackSteps(*Source, int64) ([]string, error)        { return nil, nil }
